"""A weighted mean of exact values as a rational number plus an offset, a ball: the form in which ties are decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from flint import arb


@dataclass(frozen=True)
class GroupedMean:
    """The mean sum_g e^(s_g) V_g / sum_g n_g e^(s_g) over groups g of keys that have exactly the same score.

    counts: n_g, the keys of each group, one group or more. sums: V_g, the sum of a group's values, in units of
    2^exponent. With group 0 as the base the mean is V_0 / n_0 + offset,

        offset = sum_g e^(s_g - s_0) (n_0 V_g - n_g V_0) / (n_0 sum_g n_g e^(s_g - s_0)).
    """

    counts: Sequence[int]
    sums: Sequence[int]
    exponent: int

    @property
    def base(self) -> Fraction:
        """V_0 / n_0, exactly."""
        return Fraction(self.sums[0], self.counts[0]) * Fraction(2) ** self.exponent

    @property
    def pulls(self) -> list[int]:
        """n_0 V_g - n_g V_0 of each group; where all are 0 the mean is the base."""
        return [
            self.counts[0] * total - count * self.sums[0] for count, total in zip(self.counts, self.sums, strict=True)
        ]

    def offset(self, weights: Sequence[arb]) -> arb:
        """Return the mean minus the base. weights: e^(s_g - s_0) of each group, balls of the working precision."""
        pull = sum((weight * n for weight, n in zip(weights, self.pulls, strict=True)), arb(0))
        total = sum((weight * n for weight, n in zip(weights, self.counts, strict=True)), arb(0))
        return pull / (total * self.counts[0]) * arb(2) ** self.exponent
