"""What the sums of a backward pass make of the errors of their terms: over keys, over rows, over a broadcast mask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from attnspec.conformance.gradient_errors import Terms, drift, roundings
from attnspec.conformance.row_errors import CONFIDENCE
from attnspec.conformance.rows import TIES_GAP, TIES_SAMPLE, Arithmetic, Rows, longest_run

FINISHING_ROUNDOFFS = 6  # of a sum before its store: the scale and log2(e) as constants and as factors


class Reduction(Protocol):
    """A sum over terms (heads, rows, k_len): the sum itself, and those of squares and magnitudes.

    square takes terms that are squared already. row_square and row_absolute are for errors common to a row: what one
    row adds to one result is summed before its square or magnitude is taken.
    """

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum."""

    def square(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the sum of squares."""

    def absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum of magnitudes."""

    def row_square(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of squares."""

    def row_absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of magnitudes."""

    def count(self, present: torch.Tensor) -> torch.Tensor:
        """Return the number of terms."""


@dataclass(frozen=True)
class OverKeys:
    """sum_j A_ij x_j, x: (heads, k_len, dim); (heads, rows, dim)."""

    x: torch.Tensor

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return terms @ self.x

    def square(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the sum of squares."""
        return squares @ self.x**2

    def absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum of magnitudes."""
        return terms.abs() @ self.x.abs()

    def row_square(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of squares."""
        return self.total(terms) ** 2

    def row_absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of magnitudes."""
        return self.total(terms).abs()

    def count(self, present: torch.Tensor) -> torch.Tensor:
        """Return the number of terms."""
        return present.double().sum(-1, keepdim=True)


@dataclass(frozen=True)
class OverRows:
    """sum_i A_ij x_i, x: (heads, rows, dim); (heads, k_len, dim). A key meets each row once."""

    x: torch.Tensor

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return terms.mT @ self.x

    def square(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the sum of squares."""
        return squares.mT @ self.x**2

    def absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum of magnitudes."""
        return terms.mT.abs() @ self.x.abs()

    def row_square(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of squares."""
        return self.square(terms**2)

    def row_absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of magnitudes."""
        return self.absolute(terms)

    def count(self, present: torch.Tensor) -> torch.Tensor:
        """Return the number of terms."""
        return present.double().sum(-2, keepdim=True).mT


@dataclass(frozen=True)
class OverSlots:
    """The sum over the slots that share one element of a mask: (heads, 1 or rows, 1 or k_len)."""

    rows_shared: bool
    keys_shared: bool

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        terms = terms.sum(-1, keepdim=True) if self.keys_shared else terms
        return terms.sum(-2, keepdim=True) if self.rows_shared else terms

    def square(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the sum of squares."""
        return self.total(squares)

    def absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum of magnitudes."""
        return self.total(terms.abs())

    def row_square(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of squares."""
        terms = terms.sum(-1, keepdim=True) if self.keys_shared else terms
        return self.total(terms**2)

    def row_absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of magnitudes."""
        return self.absolute(terms)

    def count(self, present: torch.Tensor) -> torch.Tensor:
        """Return the number of terms."""
        return self.total(present.double())


@dataclass(frozen=True)
class OverDistances:
    """sum_ij A_ij x_ij, x: (heads, rows, k_len); (heads, 1, 1)."""

    x: torch.Tensor

    def total(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return (terms * self.x).sum((-2, -1), keepdim=True)

    def square(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the sum of squares."""
        return (squares * self.x**2).sum((-2, -1), keepdim=True)

    def absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum of magnitudes."""
        return (terms * self.x).abs().sum((-2, -1), keepdim=True)

    def row_square(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of squares."""
        return ((terms * self.x).sum(-1, keepdim=True) ** 2).sum(-2, keepdim=True)

    def row_absolute(self, terms: torch.Tensor) -> torch.Tensor:
        """Return the sum over the rows of magnitudes."""
        return (terms * self.x).sum(-1, keepdim=True).abs().sum(-2, keepdim=True)

    def count(self, present: torch.Tensor) -> torch.Tensor:
        """Return the number of terms."""
        return (present & (self.x != 0)).double().sum((-2, -1), keepdim=True)


@dataclass
class Sums:
    """The sums that bound the error of one gradient, taken over blocks of rows and over the heads that share it.

    of: sums by name, see `add`. ties: how many terms of one result are equal, at the most. part: the total of the head
    at hand; parts: number of heads so far; parts_square, parts_sum: of their totals, squares and magnitudes.
    """

    of: dict[str, torch.Tensor] = field(default_factory=dict)
    ties: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    part: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    parts: int = 0
    parts_square: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    parts_sum: torch.Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, terms: Terms, reduction: Reduction, ties: torch.Tensor) -> None:
        """Take in the terms of one block of rows. ties: how many of those of one result are equal."""
        added = {
            "total": reduction.total(terms.value),
            "square": reduction.square(terms.value**2),
            "work": reduction.square(terms.work),
            "stored_square": reduction.square(terms.stored_square),
            "stored_sum": reduction.absolute(terms.stored_sum),
            "lost": reduction.absolute(terms.lost),
            "shared": reduction.total(terms.shared),
            "shared_square": reduction.square(terms.shared**2),
            "shared_sum": reduction.absolute(terms.shared),
            "lse_square": reduction.row_square(terms.of_lse),
            "lse_sum": reduction.row_absolute(CONFIDENCE * terms.of_lse),
            "row_square": reduction.row_square(terms.row + terms.row_fixed),
            "row_sum": reduction.row_absolute(CONFIDENCE * terms.row + terms.row_fixed),
            "of_z": reduction.total(terms.of_z),
            "of_s": reduction.total(terms.of_s),
            "count": reduction.count(terms.visible),
        }
        for name, amount in added.items():
            self.of[name] = self.of[name] + amount if name in self.of else amount
        self.ties = self.ties + torch.where(ties > 1, ties, 0.0)
        self.part = self.part + added["total"]

    def end_part(self) -> None:
        """Take what came since the last call for the part of one head, which a kernel may store before it adds."""
        self.parts += 1
        self.parts_square = self.parts_square + self.part**2
        self.parts_sum = self.parts_sum + self.part.abs()
        self.part = torch.zeros(())

    def bound(self, arithmetic: Arithmetic, unit: float, scale: float | None = None) -> torch.Tensor:
        """Return the bound on the error of the stored sum, times `unit`. scale: of the scores, where a kernel of class
        eager may store the sum, scale it and store it again. Chapter "accuracy", equation (5)."""
        a, of = arithmetic, self.of
        ties = torch.minimum(self.ties, of["count"]).clamp_min(1.0)
        error = _random(of["work"], ties)
        error += torch.minimum(_random(of["stored_square"], ties), of["stored_sum"])
        error += torch.minimum(of["shared"].abs() + _random(of["shared_square"], ties), of["shared_sum"])
        error += torch.minimum(_random(of["lse_square"], ties), of["lse_sum"])
        error += torch.minimum(_random(of["row_square"], ties), of["row_sum"])
        error += 2 * a.work * (of["of_z"].abs() + of["of_s"].abs()) + of["lost"]
        path = torch.sqrt(of["total"] ** 2 + of["square"])
        error += a.work * (roundings(of["count"], ties) + drift(of["count"], a)) * path
        error += a.work * FINISHING_ROUNDOFFS * of["total"].abs()
        if self.parts > 1:
            rounded = torch.minimum(CONFIDENCE * torch.sqrt(self.parts_square), self.parts_sum)
            error += a.weights * rounded + self.parts * a.tiny / unit
        error += (1 + (a.scores > 0)) * a.output * (of["total"].abs() + error)  # eager stores once more: the scale
        if scale is not None and a.scores:
            error += torch.where(of["count"] > 0, max(1.0, abs(scale)) * a.tiny / unit, 0.0)
        return unit * error + a.tiny


def row_ties(rows: Rows) -> torch.Tensor:
    """Return how many rows of a key share one weight, at the most and at least 1, (heads, k_len, 1).

    Beyond `TIES_SAMPLE` rows it is counted in a sample of them, drawn by a fixed seed, and scaled up.
    """
    x = torch.where(rows.p > 0, rows.z - rows.lse, torch.nan).mT  # log p; NaN equals nothing
    count = x.shape[-1]
    if count > TIES_SAMPLE:
        x = x[..., torch.randperm(count, generator=torch.Generator().manual_seed(0))[:TIES_SAMPLE]]
    largest = rows.z.abs().amax(-1, keepdim=True).amax(-2, keepdim=True)
    ties = longest_run(x.sort(-1).values, TIES_GAP * (1 + largest))
    return torch.where(ties > 1, ties * max(1.0, count / TIES_SAMPLE), 1.0)


def _random(square: torch.Tensor, ties: torch.Tensor) -> torch.Tensor:
    """Return what random errors amount to whose squares add up to `square`, `ties` of them at a time being equal."""
    return CONFIDENCE * torch.sqrt(ties * square)
