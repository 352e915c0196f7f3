"""The factor on q.k: a rational number, or the real number 1/sqrt(head_dim)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Scale:
    """The number rational / sqrt(radicand), where radicand is 1 or no square: then the number is irrational."""

    rational: Fraction
    radicand: int = 1


ONE = Scale(Fraction(1))


def scale_of(scale: float | None, head_dim: int) -> Scale:
    """Return the exact scale: a given one is its float64 value, None the real number 1/sqrt(head_dim).

    0 and negative numbers are scales like others. Rule `attention.scale-default`.
    """
    if scale is not None:
        return Scale(Fraction(scale))
    root = math.isqrt(head_dim)
    if root * root == head_dim:
        return Scale(Fraction(1, root))
    return Scale(Fraction(1), head_dim)
