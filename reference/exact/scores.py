"""The exact scores of one head, scale * q.k + bias, and the order and equality among them.

A score is held as two integers (x, y) and means (x / sqrt(radicand) + y) * unit. With a rational scale the radicand is
1 and x is always 0; with an irrational one 1 and 1/sqrt(radicand) are linearly independent over the rationals. Either
way two scores are equal exactly where their pairs are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from flint import arb, fmpz, fmpz_mat
from numpy.typing import NDArray

from attnspec.reference.exact.dyadic import DyadicMatrix, dyadic_matrix
from attnspec.reference.exact.scale import Scale

Score = tuple[fmpz, fmpz]
"""The pair (x, y) of a score."""


class HeadScores(Protocol):
    """What a head is computed from, capped or not: scores that can be told apart, and their values as balls."""

    @property
    def rows(self) -> list[list[Any]]:
        """The score of query i and key j."""

    def is_rational(self, score: Any) -> bool:
        """Say whether a score is a rational number."""

    def rational(self, score: Any) -> Fraction:
        """Return the value of a rational score."""

    def largest(self, scores: Iterable[Any]) -> Any:
        """Return the score that others are taken relative to."""

    def balls(self, scores: Iterable[Any], origin: Any = None) -> list[arb]:
        """Return scores minus origin as balls of the working precision."""


@dataclass(frozen=True)
class Scores:
    """All scores of one head: `rows[i][j]` is the pair of query i and key j, and `unit` > 0 their common unit."""

    rows: list[list[Score]]
    unit: Fraction
    radicand: int

    def is_rational(self, score: Score) -> bool:
        """Say whether a score is a rational number."""
        return score[0] == 0

    def rational(self, score: Score) -> Fraction:
        """Return the value of a rational score."""
        return int(score[1]) * self.unit

    def largest(self, scores: Iterable[Score]) -> Score:
        """Return the largest of one or more scores, compared exactly."""
        if self.radicand == 1:
            return max(scores, key=_rational_part)
        return max(scores, key=functools.cmp_to_key(self._compare))

    def balls(self, scores: Iterable[Score], origin: Score | None = None) -> list[arb]:
        """Return scores minus origin as balls of the working precision.

        The pairs are subtracted as integers, so that a small difference of large scores stays accurate, and equal
        scores differ by an exact 0.
        """
        x0, y0 = origin or (fmpz(0), fmpz(0))
        unit = arb(self.unit.numerator) / arb(self.unit.denominator)
        if self.radicand == 1:
            return [arb(y - y0) * unit for _, y in scores]
        root = arb(self.radicand).rsqrt()
        return [(arb(x - x0) * root + arb(y - y0)) * unit for x, y in scores]

    def _compare(self, left: Score, right: Score) -> int:
        """Return the sign of left - right: of x / sqrt(radicand) + y, by squares where x and y have opposite signs."""
        x, y = left[0] - right[0], left[1] - right[1]
        sign_x, sign_y = (x > 0) - (x < 0), (y > 0) - (y < 0)
        if sign_x * sign_y >= 0:
            return sign_x or sign_y
        return sign_x if x * x > self.radicand * y * y else sign_y


def exact_scores(
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    bias: NDArray[np.float64] | None,
    scale: Scale,
    positions: DyadicMatrix | None = None,
) -> Scores:
    """Return the scores of one head, scale * q.k + bias + positions, without rounding.

    query: (q_len, head_dim); key: (k_len, head_dim); bias and positions, that of ALiBi: (q_len, k_len), natural units
    of the score, or None; all finite. Both are added after scaling.
    """
    products = dyadic_matrix(query).times_transposed(dyadic_matrix(key))  # (q_len, k_len)
    zeros = fmpz_mat(len(query), len(key))
    biases = DyadicMatrix(zeros, 0) if bias is None else dyadic_matrix(bias)
    biases = biases if positions is None else biases.plus(positions)
    exponent = min(products.exponent, biases.exponent)
    scaled = products.integers * (scale.rational.numerator << (products.exponent - exponent))
    added = biases.integers * (scale.rational.denominator << (biases.exponent - exponent))
    x, y = (zeros, scaled + added) if scale.radicand == 1 else (scaled, added)
    rows = [list(zip(*pair, strict=True)) for pair in zip(x.table(), y.table(), strict=True)]
    return Scores(rows, Fraction(2) ** exponent / scale.rational.denominator, scale.radicand)


def _rational_part(score: Score) -> fmpz:
    return score[1]
