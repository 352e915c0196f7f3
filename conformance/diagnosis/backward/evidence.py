"""Evidence of a backward pass: a call, the gradients that came of it, and how far a kernel might be off."""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar

import torch

from attnspec.conformance.comparison import Comparison, compare
from attnspec.conformance.diagnosis.backward.mistake import RIGHT_BACKWARD, BackwardMistake
from attnspec.conformance.diagnosis.evidence import SLACK, Evidence, Prediction
from attnspec.conformance.diagnosis.mistake import Mistake, Numbers
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.spec.call import Gradients
from attnspec.spec.dtypes import Format, format_of

ROUNDINGS = 16.0  # of the numbers of a gradient that is larger than its budget knows


class BackwardEvidence(Evidence):
    """A call with gradients, and these. How far a mistaken kernel may be off is no bound but a guess, so a few elements
    may lie outside."""

    answer: Gradients
    share: ClassVar[float] = 0.98

    @cached_property
    def budget(self) -> Numbers:
        """How far an honest kernel may be off, by name."""
        call = self.call
        assert call.grad_output is not None, "a call with gradients"
        budget = gradient_budget(
            call, call.grad_output, call.grad_lse, causal_alignment=self.corner, accuracy=self.accuracy
        )
        return {name: self.slack * getattr(budget, name) for name in call.differentiable()}

    @cached_property
    def found(self) -> dict[str, Comparison]:
        """As of `Evidence`: the gradient of each input that has one."""
        truth = RIGHT_BACKWARD.numbers(self.call, self.corner)
        given = {name: getattr(self.answer, name) for name in truth}
        return {name: compare(given[name], x, self.budget[name], self.formats[name]) for name, x in truth.items()}

    @property
    def formats(self) -> dict[str, Format]:
        """As of `Evidence`: those of the inputs."""
        return {name: format_of(x.dtype) for name, x in self.call.differentiable().items()}

    def predicted(self, mistake: Mistake) -> Prediction:
        """As of `Evidence`."""
        assert isinstance(mistake, BackwardMistake), "a mistake of a backward pass"
        numbers, zero = mistake.numbers(self.call, self.corner), mistake.zero

        def allowed() -> Numbers:
            allowed = {name: guessed(x, self.found[name], self.formats[name]) for name, x in numbers.items()}
            return {name: x * (name != zero) for name, x in allowed.items()}

        return Prediction(numbers, allowed)


def guessed(predicted: torch.Tensor, found: Comparison, fmt: Format) -> torch.Tensor:
    """Return how far a kernel that makes a mistake may be off: what a right one may be in its worst element, times how
    much larger the gradients are, and a few roundings of the numbers themselves."""
    numbers = predicted.nan_to_num(0.0, 0.0, 0.0)
    size, right = float(numbers.norm()), float(found.truth.norm())
    larger = max(1.0, size / right) if right else 1.0
    mean = size / math.sqrt(max(numbers.numel(), 1))
    return SLACK * larger * found.budget.amax() + ROUNDINGS * fmt.unit_roundoff * (numbers.abs() + mean)
