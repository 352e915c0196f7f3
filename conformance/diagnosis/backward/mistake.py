"""A known mistake of a backward pass: the steps that it replaces, and the rule that it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.backward.steps import BackwardSteps, Pass, flow_back
from attnspec.conformance.diagnosis.mistake import Mistake, Numbers, any_call
from attnspec.conformance.diagnosis.steps import Steps
from attnspec.spec.call import Call

ENDS = ((-1, "last"), (0, "first"))  # index and word of one of those that give to a gradient


@dataclass(frozen=True)
class BackwardMistake(Mistake):
    """A known mistake of a backward pass in one form. steps: of the forward pass, which is right; back: of the backward
    pass; zero: the input whose gradient it leaves at 0, which no rounding touches."""

    steps: Steps = field(default_factory=Steps)
    back: BackwardSteps = field(default_factory=BackwardSteps)
    zero: str = ""

    def numbers(self, call: Call, corner: str) -> Numbers:
        """Return the gradients that a kernel that makes the mistake gives. Raises NoPrediction where the mistake does
        not say."""
        return flow_back(call, corner, self.back)


RIGHT_BACKWARD = BackwardMistake("right", "nothing is wrong", any_call)


def again(mistake: Mistake) -> Iterator[BackwardMistake]:
    """Yield a mistake of the forward pass as one that is made where the backward pass computes the weights again: with
    the lse of the forward pass, without it, by a softmax of its own, and, for a wrong scale, in the weights alone.
    Rule: `backward.matches-forward`."""
    forms = {"": BackwardSteps(again=mistake.steps)}
    if mistake.steps.scale is not right.scale:
        forms["in the weights alone"] = replace(forms[""], query_scale=scale_of_call, key_scale=scale_of_call)
    forms["weights computed anew, without the lse"] = replace(forms[""], by_own_sum=True)
    for form, steps in forms.items():
        yield BackwardMistake(
            f"backward-{mistake.name}",
            f"in the backward pass alone, {mistake.sentence}",
            mistake.needs,
            form="; ".join(filter(None, (mistake.form, form))),
            back=steps,
            rule="backward.matches-forward",
        )


def scale_of_call(at: Pass) -> float:
    """The scale of the call."""
    return right.scale(at.call)
