"""Results that a ball could not round: grouped by equal score, where they are rational or safely irrational.

The visible keys of a row fall into groups of exactly equal score s_g, with n_g keys each and V_g the sum of their
values. One group is taken as the base, and the row's output is written as

    o = V_0 / n_0 + offset,   offset = sum_g e^(s_g - s_0) (n_0 V_g - n_g V_0) / (n_0 sum_g n_g e^(s_g - s_0)).

The scores are distinct algebraic numbers, so by Lindemann-Weierstrass no combination of the e^(s_g) with rational
coefficients is 0 unless all coefficients are. Hence the offset is 0 where all groups have the same mean, and o is that
rational; otherwise o is transcendental, on no rounding boundary, and raising the precision ends. Splitting off the
rational base makes it end early: a tie of the base is settled by the sign of the offset, however small e^(s_g - s_0).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from flint import arb

from attnspec.reference.exact.precision import until_decided
from attnspec.reference.exact.rounding import round_ball, round_near, round_to
from attnspec.reference.exact.scores import HeadScores
from attnspec.spec.dtypes import Format


@dataclass(frozen=True)
class Group:
    """The visible keys of one row that have exactly the same score."""

    score: Any  # a Score or a CappedScore, as the scores of the row are
    keys: list[int]


@dataclass(frozen=True)
class GroupedRow:
    """One row with a visible key; the group of its largest score comes first.

    fmt: what results are rounded to; start: bits of the first try; name: the row, for messages.
    """

    scores: HeadScores
    groups: list[Group]
    fmt: Format
    start: int
    name: str

    def output(self, column: list[int], exponent: int, where: str) -> float:
        """Return sum_j w_j v_j / sum_j w_j, rounded.

        column: the integers v_j of one column of V, (k_len,), in units of 2^exponent. where: the column, for messages.
        Raises UndecidedError at the precision cap.
        """
        unit = Fraction(2) ** exponent
        counts = [len(group.keys) for group in self.groups]
        sums = [sum(column[key] for key in group.keys) for group in self.groups]
        base = Fraction(sums[0], counts[0]) * unit
        pulls = [counts[0] * total - count * sums[0] for count, total in zip(counts, sums, strict=True)]
        if not any(pulls):
            return round_to(base, self.fmt)

        def attempt() -> float | None:
            weights = self._weights()
            pull = sum((weight * n for weight, n in zip(weights, pulls, strict=True)), arb(0))
            total = sum((weight * n for weight, n in zip(weights, counts, strict=True)), arb(0))
            return round_near(base, pull / (total * counts[0]) * arb(2) ** exponent, self.fmt)

        return until_decided(attempt, self.start, f"output of {self.name}, {where}")

    def lse(self) -> float:
        """Return log(sum_j e^(s_j)), natural log, rounded (rule `softmax.lse`).

        Why it ends. Were the lse an algebraic number r, then e^r = sum_g n_g e^(s_g) with algebraic exponents, and by
        Lindemann-Weierstrass r is the score of the only group and n_g = 1: one visible key, whose score is rounded
        directly where it is rational. In particular s + log n is transcendental for n > 1, and a / sqrt(d) + b is
        irrational for a != 0; neither is on a rounding boundary.
        Raises UndecidedError at the precision cap.
        """
        largest = self.groups[0]
        splits = len(largest.keys) == 1 and self.scores.is_rational(largest.score)
        if splits and len(self.groups) == 1:
            return round_to(self.scores.rational(largest.score), self.fmt)

        def attempt() -> float | None:
            weighted = zip(self._weights()[1:], self.groups[1:], strict=True)
            rest = sum((weight * len(group.keys) for weight, group in weighted), arb(0))
            if splits:  # the rest may be too small to show next to the score, but its sign is known
                return round_near(self.scores.rational(largest.score), rest.log1p(), self.fmt)
            return round_ball(self.scores.balls([largest.score])[0] + (rest + len(largest.keys)).log(), self.fmt)

        return until_decided(attempt, self.start, f"lse of {self.name}")

    def _weights(self) -> list[arb]:
        """Return e^(s_g - s_0) of each group as balls of the working precision."""
        gaps = self.scores.balls([group.score for group in self.groups], origin=self.groups[0].score)
        return [gap.exp() for gap in gaps]


def groups_of_row(scores: HeadScores, row: int, keys: list[int]) -> list[Group]:
    """Return the groups of a row's visible keys, one or more; the group of the largest score comes first."""
    members: dict[Any, list[int]] = {}
    for key in keys:
        members.setdefault(scores.rows[row][key], []).append(key)
    largest = scores.largest(members)
    groups = [Group(score, grouped) for score, grouped in members.items()]
    return sorted(groups, key=lambda group: group.score != largest)
