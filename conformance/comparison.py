"""The comparison of a kernel's output with the truth: every element within its budget, and nothing hidden.

NaN, infinities and empty tensors are decided one by one: a NaN in either tensor must never switch the comparison off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from attnspec.conformance.pattern import describe, everywhere
from attnspec.spec.dtypes import Format


@dataclass(frozen=True)
class Comparison:
    """How far `got` lies from `truth`. error_over_budget: the worst element's error as a multiple of its budget; 0 for
    empty tensors. wrong: bool, where it is above 1. worst: index of the worst element."""

    got: torch.Tensor
    truth: torch.Tensor
    budget: torch.Tensor
    ratio: torch.Tensor

    @property
    def error_over_budget(self) -> float:
        """The largest ratio of error to budget."""
        return float(self.ratio.max()) if self.ratio.numel() else 0.0

    @property
    def wrong(self) -> torch.Tensor:
        """Where the error is above its budget."""
        return self.ratio > 1

    @property
    def holds(self) -> bool:
        """Whether every element is within its budget."""
        return not bool(self.wrong.any())

    @property
    def nan_appeared(self) -> bool:
        """Whether `got` is NaN where the truth is a number."""
        return bool((self.got.isnan() & ~self.truth.isnan()).any())

    @property
    def what(self) -> str:
        """What is wrong, in words to be read after the name of the result."""
        if self.nan_appeared:
            return "holds NaN where a number is right"
        if math.isfinite(self.error_over_budget):
            return f"is {self.error_over_budget:.4g} times as far from the exact one as an honest result may be"
        got, truth = (float(x[self._worst]) for x in (self.got, self.truth))
        if not math.isfinite(truth):
            return f"is {got:.4g} where only {truth} is right"
        return f"is {got} where a number is right" if math.isinf(got) else "must be exact, and is not"

    @property
    def _worst(self) -> tuple[int, ...]:
        return tuple(int(i) for i in torch.unravel_index(self.ratio.argmax(), self.ratio.shape))

    def details(self, name: str, axes: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Return the lines of a failure screen: the worst element and the pattern of the wrong ones."""
        at = self._worst
        place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=True))
        got, truth, budget = (float(t[at]) for t in (self.got, self.truth, self.budget))
        worst = f"{name}[{', '.join(map(str, at))}] ({place}) is {got:.9g}, should be {truth:.9g}"
        share = f"{int(self.wrong.sum())} of {self.wrong.numel()} elements: {describe(self.wrong, axes)}"
        share += f"; {name} is {same}" if (same := everywhere(self.got)) else ""
        parts = [(f"worst {axes[depth - 1]}", self._worst_of(axes, depth)) for depth in (3, 2) if depth < len(axes)]
        lines = [("worst", worst), *parts]
        if math.isfinite(self.error_over_budget):
            error = f"{self.error_over_budget:.4g} budgets (budget {budget:.3g}, error {abs(got - truth):.3g})"
            lines.insert(1, ("error", error))
        return (*(line for line in lines if line[1]), ("pattern", share))

    def _worst_of(self, axes: tuple[str, ...], depth: int) -> str:
        """Say which part of the first `depth` axes holds the most wrong elements, and the mean of its errors; nothing
        where there is but one part."""
        parts = self.wrong.shape[:depth]
        if math.prod(parts) == 1:
            return ""
        wrong, ratio = self.wrong.flatten(depth).double().mean(-1), self.ratio.flatten(depth).mean(-1)
        most = torch.where(wrong == wrong.max(), ratio, -1.0)  # of equal shares, the larger mean error
        at = torch.unravel_index(most.argmax(), parts)
        place = ", ".join(f"{axis} {int(i)}" for axis, i in zip(axes, at, strict=False))
        mean = float(ratio[at])
        errors = f", {mean:.3g} budgets on average" if math.isfinite(mean) else ""
        return f"{place}: {float(wrong[at]):.0%} of its elements are wrong{errors}"


def compare(got: torch.Tensor, truth: torch.Tensor, budget: torch.Tensor, fmt: Format) -> Comparison:
    """Compare `got` with `truth` (float64) within `budget` (float64), all of one shape; `fmt` is the output's format.

    An element is right where |got - truth| <= budget; where the truth is -inf, +inf or NaN only the same is right; an
    infinity is right too where |truth| + budget rounds to it in the format (rule `accuracy.overflow`). The sign of
    zero is free. Raises ValueError where the shapes differ: a defect of the suite, which checks the kernel's shapes
    before.
    """
    if not got.shape == truth.shape == budget.shape:
        raise ValueError(f"shapes differ: got {tuple(got.shape)}, truth {tuple(truth.shape)}, {tuple(budget.shape)}")
    got = got.detach().cpu().double()
    error = (got - truth).abs()
    ratio = torch.where(error == 0, 0.0, error / budget)  # a budget of 0 allows no error
    finite = truth.isfinite() & got.isfinite()
    overflow = (
        got.isinf() & truth.isfinite() & (truth.abs() + budget >= overflow_edge(fmt)) & (got.sign() == truth.sign())
    )
    same = (got == truth) | (got.isnan() & truth.isnan()) | overflow
    ratio = torch.where(finite, ratio, torch.where(same, 0.0, torch.inf))
    return Comparison(got, truth, budget, ratio.nan_to_num(nan=torch.inf, posinf=torch.inf))


def overflow_edge(fmt: Format) -> float:
    """The smallest magnitude that rounds to infinity: halfway between the largest number and the next power of two."""
    half_step = 2.0 ** (fmt.emax - fmt.precision)
    return fmt.largest + half_step  # inf in float64 arithmetic for float64 itself: nothing rounds to it there
