"""RoPE in ball arithmetic: rotated vectors, and attention over them, every entry proven correctly rounded.

The angle of pair c from one position to the next is base^(-2c/r), an algebraic number for a rational base. For another
position than 0 the angle a is not 0, so by Lindemann-Weierstrass x1 cos a - x2 sin a, a combination of e^(ia) and
e^(-ia) with algebraic coefficients, is transcendental unless x1 = x2 = 0: on no rounding boundary.

The score of query and key depends on the distance d of their positions alone: with A_c = q1 k1 + q2 k2 and
B_c = q1 k2 - q2 k1 of pair c it is scale * (rest + sum_c A_c cos(d a_c) + B_c sin(d a_c)), rest the product of the
elements that are not rotated. Keys of one (d, A, B, rest) have the same score. Where other keys had it too, or a mean
were on a rounding boundary, the row would stay undecided and raise UndecidedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnspec.reference.exact.attention import ExactResult
from attnspec.reference.exact.gradient_ties import factor_ball
from attnspec.reference.exact.inputs import checked_scale, finite
from attnspec.reference.exact.mean import GroupedMean
from attnspec.reference.exact.precision import first_precision, until_decided, working_precision
from attnspec.reference.exact.rounding import round_ball, round_near, round_to
from attnspec.reference.exact.scale import Scale, scale_of
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError

INTERLEAVED = "interleaved"
HALF_SPLIT = "half_split"


@dataclass(frozen=True)
class Rope:
    """base: of the angles, exactly. rotary_dim: how many elements are rotated, from the first on, an even number.
    layout: `interleaved` or `half_split`, which elements are a pair."""

    base: Fraction
    rotary_dim: int
    layout: str = HALF_SPLIT

    def angle(self, pair: int) -> arb:
        """Return the angle of a pair from one position to the next, a ball of the working precision."""
        log = (arb(self.base.numerator) / self.base.denominator).log()
        return (-log * (2 * pair) / self.rotary_dim).exp()

    def places(self, pair: int) -> tuple[int, int]:
        """Return which two elements are a pair."""
        if self.layout == INTERLEAVED:
            return 2 * pair, 2 * pair + 1
        return pair, pair + self.rotary_dim // 2


@dataclass(frozen=True)
class _Score:
    """A score before the scale: distance >= 0, the nonzero (pair, A, B), and the product of what is not rotated."""

    distance: int
    turning: tuple[tuple[int, Fraction, Fraction], ...]
    rest: Fraction

    def ball(self, rope: Rope, factor: arb) -> arb:
        """Return the score as a ball of the working precision."""
        total = _number(self.rest)
        for pair, a, b in self.turning:
            angle = rope.angle(pair) * self.distance
            total += _number(a) * angle.cos() + _number(b) * angle.sin()
        return total * factor


def rotate(
    x: NDArray[np.floating], positions: Sequence[int], rope: Rope, rounded_to: Format = FLOAT64
) -> NDArray[np.float64]:
    """Return vectors rotated by their positions, (length, head_dim), each entry the true number rounded once.

    x: (length, head_dim), float16, float32 or float64, finite. Raises InputError for arguments that do not fit. Rules
    `rope.rotation`, `rope.layout`, `rope.partial`. Source: Su et al. 2021, section 3.4.2.
    """
    rows = finite("x", x, 2)
    _check(rope, rows.shape[1])
    if len(positions) != len(rows):
        raise InputError(f"{len(positions)} positions for {len(rows)} vectors: use one a vector")
    out = np.array([[round_to(Fraction(n), rounded_to) for n in row] for row in rows.tolist()]).reshape(rows.shape)
    for i, position in enumerate(positions):
        for pair in range(rope.rotary_dim // 2):
            first, second = rope.places(pair)
            x1, x2 = Fraction(rows[i, first]), Fraction(rows[i, second])
            out[i, first] = _turned(x1, -x2, rope, pair, position, rounded_to)
            out[i, second] = _turned(x2, x1, rope, pair, position, rounded_to)
    return out


def _turned(p: Fraction, q: Fraction, rope: Rope, pair: int, position: int, fmt: Format) -> float:
    """Return p cos a + q sin a, a the angle of a pair at a position, rounded."""
    if position == 0 or p == q == 0:
        return round_to(p, fmt)

    def attempt() -> float | None:
        angle = rope.angle(pair) * position
        return round_ball(_number(p) * angle.cos() + _number(q) * angle.sin(), fmt)

    return until_decided(attempt, first_precision(fmt, 2), f"pair {pair} at position {position}")


def rope_attention(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    rope: Rope,
    *,
    query_offset: int = 0,
    is_causal: bool = False,
    scale: float | None = None,
    rounded_to: Format = FLOAT64,
) -> ExactResult:
    """Return attention of rotated queries over rotated keys and its lse, each entry the true number rounded once.

    query: (batch, heads, q_len, head_dim); key: (batch, heads, k_len, head_dim); value: (batch, heads, k_len,
    value_dim), k_len 1 or more; float16, float32 or float64, finite. Query i has position query_offset + i, key j
    position j; is_causal hides the keys of a later position. A row that sees no key has output 0 and lse -inf.
    Raises InputError for arguments that do not fit, UndecidedError where PRECISION_CAP bits do not prove a rounding.
    Rules `rope.rotation`, `rope.distance`, `rope.position`. Source: Su et al. 2021, section 3.2.2, equation 16.
    """
    q, k, v = (finite(name, x, 4) for name, x in (("query", query), ("key", key), ("value", value)))
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise InputError(f"query {q.shape}, key {k.shape}, value {v.shape}: use one batch, heads, k_len and head_dim")
    _check(rope, q.shape[3])
    factor = scale_of(checked_scale(scale), q.shape[3])
    start = first_precision(rounded_to, k.shape[2] * rope.rotary_dim)
    output, lse = np.zeros((*q.shape[:3], v.shape[3])), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(q.shape[:3]):
        position = query_offset + i
        keys = [j for j in range(k.shape[2]) if not is_causal or j <= position]
        if keys:
            scores = {j: _score(q[b, h, i], k[b, h, j], position - j, rope) for j in keys}
            name = f"batch {b}, head {h}, row {i}"
            row = _Row(scores, rope, factor, rounded_to, start, name)
            output[b, h, i], lse[b, h, i] = row.output(v[b, h]), row.lse()
    return ExactResult(output, lse)


class _Row:
    """One query that sees a key: its keys by equal score, one of the largest first as far as `start` bits tell."""

    def __init__(
        self, scores: dict[int, _Score], rope: Rope, factor: Scale, fmt: Format, start: int, name: str
    ) -> None:
        self.rope, self.factor, self.fmt, self.start, self.name = rope, factor, fmt, start, name
        members: dict[_Score, list[int]] = {}
        for key, score in scores.items():
            members.setdefault(score, []).append(key)
        with working_precision(start):
            first = max(members, key=lambda score: float(self._ball(score)))
        self.scores = sorted(members, key=lambda score: score != first)
        self.keys = [members[score] for score in self.scores]

    def output(self, value: NDArray[np.float64]) -> list[float]:
        """Return the output, one number for each column of the values (k_len, value_dim)."""
        return [self._mean([Fraction(x) for x in column], c) for c, column in enumerate(value.T.tolist())]

    def lse(self) -> float:
        """Return log sum_g n_g e^(s_g), rounded: s_0 + log(n_0 + rest)."""
        alone = len(self.scores) == 1 and len(self.keys[0]) == 1
        if alone and not self.scores[0].turning and self.factor.radicand == 1:
            return round_to(self.scores[0].rest * self.factor.rational, self.fmt)

        def attempt() -> float | None:
            total = sum((w * len(keys) for w, keys in zip(self._weights(), self.keys, strict=True)), arb(0))
            return round_ball(self._ball(self.scores[0]) + total.log(), self.fmt)

        return until_decided(attempt, self.start, f"lse of {self.name}")

    def _mean(self, column: list[Fraction], place: int) -> float:
        unit = max(x.denominator for x in column)  # a power of two: values are dyadic
        sums = [sum(int(column[key] * unit) for key in keys) for keys in self.keys]
        mean = GroupedMean([len(keys) for keys in self.keys], sums, 1 - unit.bit_length())
        if not any(mean.pulls):
            return round_to(mean.base, self.fmt)
        return until_decided(
            lambda: round_near(mean.base, mean.offset(self._weights()), self.fmt),
            self.start,
            f"output of {self.name}, column {place}",
        )

    def _weights(self) -> list[arb]:
        """Return e^(s_g - s_0) of each group, balls of the working precision."""
        first = self._ball(self.scores[0])
        return [arb(1), *((self._ball(score) - first).exp() for score in self.scores[1:])]

    def _ball(self, score: _Score) -> arb:
        return score.ball(self.rope, factor_ball(self.factor))


def _score(query: NDArray[np.float64], key: NDArray[np.float64], distance: int, rope: Rope) -> _Score:
    """Return the score of a query and a key, before the scale, exactly."""
    q, k = ([Fraction(x) for x in row.tolist()] for row in (query, key))
    rest = sum((a * b for a, b in zip(q[rope.rotary_dim :], k[rope.rotary_dim :], strict=True)), Fraction(0))
    turning = []
    for pair in range(rope.rotary_dim // 2):
        first, second = rope.places(pair)
        a = q[first] * k[first] + q[second] * k[second]
        b = q[first] * k[second] - q[second] * k[first]
        if distance == 0:
            rest += a
        elif a or b:
            turning.append((pair, a, b if distance > 0 else -b))
    return _Score(abs(distance) if turning else 0, tuple(turning), rest)


def _number(x: Fraction) -> arb:
    return arb(x.numerator) / arb(x.denominator)


def _check(rope: Rope, head_dim: int) -> None:
    """Raise InputError for a rotation that cannot be."""
    if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= head_dim:
        raise InputError(f"rotary_dim is {rope.rotary_dim}: use an even number from 2 to head_dim, {head_dim}")
    if rope.base <= 0 or rope.layout not in (INTERLEAVED, HALF_SPLIT):
        raise InputError(f"base {rope.base} and layout {rope.layout!r}: use a positive base, a known layout")
