"""A case: one check on one problem, and the string that reruns it, such as
`visible_set_is_exact/q=33/k=70/d=64/causal`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from attnspec.spec.exercised import rules_exercised
from attnspec.spec.problem import Problem
from attnspec.spec.profiles import PROFILES

LSE_RULES = ("softmax.lse", "softcap.lse", "accuracy.lse")  # what a call without an lse cannot show


class Ran(NamedTuple):
    """What a check that chooses its problem returns: the worst error over budget, and the problem that ran."""

    error_over_budget: float | None
    problem: Problem | None = None


class Draw(NamedTuple):
    """How problems are drawn: from which domain (see `draws`), how many, from which seed."""

    domain: str
    examples: int
    seed: int

    def __str__(self) -> str:
        return f"{self.domain}/drawn={self.examples}/seed={self.seed}"


@dataclass(frozen=True)
class Case:
    """One check on one problem, or on problems that are drawn.

    name: of the golden case, else the string of the problem or of the draw. problem: of a draw, the one that stands
    for its domain. extra_rules: ids beyond those that the check or the problem names.
    """

    check: str
    family: str
    name: str
    problem: Problem
    check_rules: tuple[str, ...]
    return_lse: bool = False
    extra_rules: tuple[str, ...] = ()
    draw: Draw | None = None

    def on(self, problem: Problem) -> Case:
        """Return the case of the same check on one problem."""
        return replace(self, name=str(problem), problem=problem, draw=None)

    @property
    def id(self) -> str:
        """The string that reruns the case."""
        return f"{self.check}/{self.name}"

    @property
    def rules(self) -> tuple[str, ...]:
        """The ids of the rules that the case enforces, those of the check first."""
        exercised = rules_exercised(self.problem, self.return_lse) if self.family != "contract" else ()
        cited = dict.fromkeys((*self.check_rules, *self.extra_rules, *exercised))
        return tuple(rule for rule in cited if self.return_lse or not rule.startswith(LSE_RULES))

    @property
    def profiles(self) -> tuple[str, ...]:
        """The names of the profiles that the case belongs to."""
        return tuple(p.name for p in PROFILES.values() if p.holds(self.problem, self.return_lse))
