"""What errors at the steps of a computation do to its results, to first order (chapter "accuracy", "Derivation for the
forms")."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch.func import vjp, vmap

from attnspec.conformance.forms.target import Tensors
from attnspec.conformance.gradient_sums import FINISHING_ROUNDOFFS
from attnspec.conformance.row_errors import CONFIDENCE
from attnspec.conformance.rows import Arithmetic

Steps = Callable[[Tensors, Tensors], Tensors]
"""Results of one head by name, from its inputs and the errors of the steps, which are added there."""

DIRECTION_ELEMENTS = 2**22  # numbers of one error of all heads, over the directions that are taken at a time


@dataclass(frozen=True)
class Bound:
    """A gradient, or one of each head or batch element, and what it is off by: square, random errors, in units of
    CONFIDENCE squared; fixed, the rest; parts: how many a kernel may have stored before it added them up."""

    total: torch.Tensor
    square: torch.Tensor
    fixed: torch.Tensor
    parts: int = 1

    @classmethod
    def stacked(cls, bounds: list[Bound]) -> Bound:
        """Return the bounds of several sums, one behind the other along a new first axis."""
        total, square, fixed = (
            torch.stack([getattr(x, name) for x in bounds]) for name in ("total", "square", "fixed")
        )
        return cls(total, square, fixed, bounds[0].parts)

    def added(self, a: Arithmetic) -> Bound:
        """Return the bound of the sum over the first axis, whose parts may each be stored."""
        count = len(self.total)
        stored = ((a.weights * self.total) ** 2).sum(0) if count > 1 else 0.0
        return Bound(self.total.sum(0), self.square.sum(0) + stored, self.fixed.sum(0), self.parts * count)

    def budget(self, a: Arithmetic) -> torch.Tensor:
        """Return the budget of the stored sum: equations (13) and (16)."""
        size = self.total.abs()
        error = CONFIDENCE * torch.sqrt(self.square) + self.fixed + FINISHING_ROUNDOFFS * a.work * size
        return error + (1 + (a.scores > 0)) * a.output * (size + error) + (1 + self.parts) * a.tiny


def propagated(
    steps: Steps, x: Tensors, shared: Collection[str], random: Tensors, fixed: Tensors, last: Tensors
) -> dict[str, Bound]:
    """Return the results of each head, (heads, ...), and what errors of these sizes do to them, to first order.

    x: inputs of all heads, (heads, ...), but of the names in `shared` one for all of them. random: sizes of independent
    errors, in units of CONFIDENCE; fixed: of errors that may all have one sign; both (heads, ...), by name. last:
    random errors of the results themselves. With J the derivatives of a result by the errors of the steps, it is off by
    CONFIDENCE sqrt(sum J^2 e^2) of the random ones, and of the others, a name at a time, by abs(sum J e) and CONFIDENCE
    sqrt(sum J^2 e^2), never more than by sum abs(J e). Chapter "accuracy", equations (13) and (16).
    """
    zeros = {name: torch.zeros_like(size) for name, size in (fixed | random).items()}
    chunk = max(1, DIRECTION_ELEMENTS // max(zero.numel() for zero in zeros.values()))
    dims = {name: None if name in shared else 0 for name in x}
    found = {}
    for result in last:

        def of_head(
            given: Tensors, errors: Tensors, sizes: Tensors, commons: Tensors, result: str = result
        ) -> tuple[torch.Tensor, ...]:
            total, pull = vjp(lambda e: steps(given, e)[result], errors)[:2]

            def moved(direction: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                (slopes,) = pull(direction)
                square = torch.stack([(slopes[name] * size).square().sum() for name, size in sizes.items()])
                common = torch.stack([_common(slopes[name] * size) for name, size in commons.items()])
                return square.sum(), common.sum()

            basis = torch.eye(total.numel(), dtype=torch.float64).view(-1, *total.shape)
            square, common = vmap(moved, chunk_size=chunk)(basis)
            return total, square.view(total.shape), common.view(total.shape)

        total, square, common = vmap(of_head, in_dims=(dims, 0, 0, 0))(x, zeros, random, fixed)
        found[result] = Bound(total, square + last[result] ** 2, common)
    return found


def _common(moved: torch.Tensor) -> torch.Tensor:
    """Return what errors of one kind do that are a smooth function of what they fall on: their sum and a random rest,
    never more than the sum of magnitudes."""
    random = CONFIDENCE * torch.sqrt(moved.square().sum())
    return torch.minimum(moved.sum().abs() + random, moved.abs().sum())
