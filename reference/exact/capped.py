"""The capped scores of one head, c tanh(s / c) + bias: exact arguments, transcendental values.

A capped score is held as the exact pair (x, y) of its scaled score s and its bias, a rational number. Equal pairs and
biases make equal scores, and no others do: for different s the numbers exp(2 s / c) have different algebraic exponents,
and an equation between the two scores would be a relation between them (Lindemann-Weierstrass). What the values do in a
sum of exponentials no theorem here settles: where balls do not prove a rounding, the precision grows up to its cap, and
there it fails loudly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import arb, fmpz
from numpy.typing import NDArray

from attnspec.reference.exact.dyadic import DyadicMatrix, dyadic_matrix
from attnspec.reference.exact.scale import Scale
from attnspec.reference.exact.scores import Score, Scores, exact_scores

CappedScore = tuple[fmpz, fmpz, Fraction]
"""The pair of the scaled score, and the bias."""


@dataclass(frozen=True)
class CappedScores:
    """All capped scores of one head: `rows[i][j]` is that of query i and key j. scaled: the scores before the cap."""

    rows: list[list[CappedScore]]
    scaled: Scores
    cap: Fraction

    def is_rational(self, score: CappedScore) -> bool:
        """Say whether a score is a rational number: tanh is 0 at 0, and transcendental at every other algebraic one."""
        return bool(score[0] == 0 and score[1] == 0)

    def rational(self, score: CappedScore) -> Fraction:
        """Return the value of a rational score."""
        return score[2]

    def largest(self, scores: Iterable[CappedScore]) -> CappedScore:
        """Return a score that is the largest but for the width of a ball: what others are taken relative to."""
        given = list(scores)
        middles = [float(ball.mid()) for ball in self.balls(given)]
        return given[middles.index(max(middles))]

    def balls(self, scores: Iterable[CappedScore], origin: CappedScore | None = None) -> list[arb]:
        """Return scores minus origin as balls of the working precision; equal ones differ by an exact 0."""
        given = list(scores)
        values = [t * _ball(self.cap) + _ball(score[2]) for t, score in zip(self.tanh(given), given, strict=True)]
        if origin is None:
            return values
        base = self.balls([origin])[0]
        return [arb(0) if score == origin else value - base for score, value in zip(given, values, strict=True)]

    def tanh(self, scores: Iterable[CappedScore]) -> list[arb]:
        """Return tanh(s / c) as balls."""
        pairs: list[Score] = [(x, y) for x, y, _ in scores]
        return [(s / _ball(self.cap)).tanh() for s in self.scaled.balls(pairs)]

    def slopes(self, scores: Iterable[CappedScore]) -> list[arb]:
        """Return 1 - tanh(s / c)^2, the derivatives of the capped scores by the scaled ones, as balls."""
        return [1 - t * t for t in self.tanh(scores)]


def capped_scores(
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    bias: NDArray[np.float64] | None,
    scale: Scale,
    softcap: float,
    positions: DyadicMatrix | None = None,
) -> CappedScores:
    """Return the scores of one head, c tanh(scale * q.k / c) + bias + positions; arguments: `scores.exact_scores`.

    softcap: above 0, its exact float64 value. Rules: `softcap.scores`, `softcap.bias`.
    """
    scaled = exact_scores(query, key, None, scale)
    biases = dyadic_matrix(np.zeros((len(query), len(key))) if bias is None else bias)
    biases = biases if positions is None else biases.plus(positions)
    rows = [
        [(x, y, b) for (x, y), b in zip(pairs, row, strict=True)]
        for pairs, row in zip(scaled.rows, biases.fractions(), strict=True)
    ]
    return CappedScores(rows, scaled, Fraction(softcap))


def _ball(number: Fraction) -> arb:
    return arb(number.numerator) / arb(number.denominator)
