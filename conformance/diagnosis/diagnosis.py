"""A diagnosis: the names of the mistakes that reproduce a failure, and what a failure screen says of them."""

from __future__ import annotations

from dataclasses import dataclass

from attnspec.conformance.diagnosis.broken import broken_rule
from attnspec.conformance.diagnosis.mistake import Mistake
from attnspec.spec.problem import Problem

DIALECTS = {  # what a kernel that means a mistake declares instead, by the mistake's name
    "causal-other-corner": "causal_alignment, by --causal-alignment",
    "alibi-other-corner": "alibi_alignment, by --alibi-alignment",
    "alibi-other-form": "alibi_form, in its capabilities",
    "lse-base-2": "lse_base, in its capabilities",
    "scores-in-bfloat16": "accuracy eager, by --accuracy",
    "scores-in-float16": "accuracy eager, by --accuracy",
}


@dataclass(frozen=True)
class Diagnosis:
    """The mistakes that reproduce a failure, best first; forms of one mistake stand next to each other.

    but_not: a problem on which the mistake would show and the kernel is right, in words that `Problem.parse` reads.
    """

    mistakes: tuple[Mistake, ...]
    but_not: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, best first."""
        return tuple(dict.fromkeys(mistake.name for mistake in self.mistakes))

    @property
    def line(self) -> str:
        """The line of the failure screen: `name: sentence`, and further names that fit as well."""
        first, *others = self.names
        forms = [mistake.form for mistake in self.mistakes if mistake.name == first]
        form = f" ({forms[0]})" if len(forms) == 1 and forms[0] else ""
        more = f"; or {', or '.join(others)}" if others else ""
        less = f"; but not in {self.but_not}" if self.but_not else ""
        return f"{first}: {self.mistakes[0].sentence}{form}{more}{less}"

    @property
    def dialect(self) -> str | None:
        """What a kernel that means its first mistake declares instead, None where the spec has no such dialect."""
        return DIALECTS.get(self.names[0])

    def rule(self, problem: Problem) -> str:
        """The id of the rule that the first mistake breaks in a problem."""
        return broken_rule(self.mistakes[0], problem)
