"""Additive attention, softmax(v_a^T tanh(W_q q + W_k k)) V, every entry proven correctly rounded.

The arguments x of tanh are exact rationals. Since tanh is odd, a score is sum_x c_x tanh(x) over distinct x > 0, with
rational c_x. The numbers 1, tanh(x_1), tanh(x_2), ... are linearly independent over the rationals: with all x = n/N
they are rational functions of the transcendental number T = e^(2/N), and the one with the largest n has a pole, at
T = e^(i pi / n), that no other has. So two scores are equal exactly where their c_x are, and what a mask adds to them.
A row whose groups of equal score have one mean is that rational; another is decided in balls, or raises UndecidedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnspec.reference.exact.attention import ExactResult
from attnspec.reference.exact.dyadic import dyadic_matrix
from attnspec.reference.exact.inputs import FLOAT_DTYPES, finite
from attnspec.reference.exact.mean import GroupedMean
from attnspec.reference.exact.precision import first_precision, until_decided, working_precision
from attnspec.reference.exact.rounding import round_ball, round_near, round_to
from attnspec.reference.exact.visibility import UPPER_LEFT, causal_visible
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError


class Score(NamedTuple):
    """bias: what a mask adds. pairs: (x, c_x), x > 0 and c_x != 0, in the order of x. No pair at all is the score
    `bias`."""

    bias: Fraction
    pairs: tuple[tuple[Fraction, Fraction], ...]


@dataclass(frozen=True)
class _Row:
    """One query that sees a key: its distinct scores, one near the largest first, and the keys that have each."""

    scores: list[Score]
    keys: list[list[int]]

    @property
    def counts(self) -> list[int]:
        """The number of keys of each score."""
        return [len(keys) for keys in self.keys]

    def weights(self) -> list[arb]:
        """Return e^(s_g - s_0) of each score, balls of the working precision."""
        first = _ball(self.scores[0])
        return [arb(1), *((_ball(score) - first).exp() for score in self.scores[1:])]

    def lse(self, fmt: Format, start: int, name: str) -> float:
        """Return log sum_g n_g e^(s_g), rounded: s_0 + log n_0 + log(1 + rest)."""
        if not self.scores[0].pairs and self.counts == [1]:
            return round_to(self.scores[0].bias, fmt)

        def attempt() -> float | None:
            rest = sum((w * n for w, n in zip(self.weights()[1:], self.counts[1:], strict=True)), arb(0))
            near = _ball(self.scores[0]) + arb(self.counts[0]).log()
            return round_ball(near + (rest / self.counts[0]).log1p(), fmt)

        return until_decided(attempt, start, f"lse of {name}")

    def output(self, column: Sequence[int], exponent: int, fmt: Format, start: int, name: str) -> float:
        """Return the mean of one column of the values, integers in units of 2^exponent, rounded."""
        mean = GroupedMean(self.counts, [sum(column[key] for key in keys) for keys in self.keys], exponent)
        if not any(mean.pulls):
            return round_to(mean.base, fmt)
        return until_decided(
            lambda: round_near(mean.base, mean.offset(self.weights()), fmt), start, f"output of {name}"
        )


def additive_attention(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    w_q: NDArray[np.floating],
    w_k: NDArray[np.floating],
    v_a: NDArray[np.floating],
    *,
    attn_mask: NDArray[np.bool_] | NDArray[np.floating] | None = None,
    is_causal: bool = False,
    rounded_to: Format = FLOAT64,
) -> ExactResult:
    """Return additive attention and its lse, each entry the true real number rounded once to `rounded_to`.

    query: (batch, heads, q_len, query_dim); key: (batch, heads, k_len, key_dim); value: (batch, heads, k_len,
    value_dim); w_q: (hidden, query_dim); w_k: (hidden, key_dim); v_a: (hidden,); float16, float32 or float64, finite
    everywhere. attn_mask: bool, True takes part, or floating, added to the scores, -inf hides; it broadcasts to (batch,
    heads, q_len, k_len). is_causal: row i also sees no key j > i. A row that sees no key has output 0 and lse -inf.

    Raises InputError for arguments that do not fit, UndecidedError where PRECISION_CAP bits do not prove a rounding.
    Rules `additive.score`, `additive.softmax`, `additive.mask`. Source: Bahdanau et al. 2015, section 3.1 and
    appendix A.1.2.
    """
    named = {"query": (query, 4), "key": (key, 4), "value": (value, 4), "w_q": (w_q, 2), "w_k": (w_k, 2)}
    q, k, v, from_q, from_k, mix = (finite(name, *given) for name, given in (named | {"v_a": (v_a, 1)}).items())
    if not q.shape[:2] == k.shape[:2] == v.shape[:2] or k.shape[2] != v.shape[2]:
        raise InputError(f"query {q.shape}, key {k.shape}, value {v.shape}: use one batch, one heads, one k_len")
    if from_q.shape != (len(mix), q.shape[3]) or from_k.shape != (len(mix), k.shape[3]):
        raise InputError(f"w_q {from_q.shape} and w_k {from_k.shape}: use (hidden, dim), v_a has {len(mix)}")
    shape = (*q.shape[:3], k.shape[2])
    visible, bias = _visible_and_bias(attn_mask, shape)
    if is_causal:
        visible = visible & causal_visible(shape[2], shape[3], UPPER_LEFT)
    output, lse = np.zeros((*shape[:3], v.shape[3])), np.full(shape[:3], -np.inf)
    start = first_precision(rounded_to, shape[3] * len(mix))
    for b, h in np.ndindex(shape[:2]):
        arguments = _arguments(q[b, h], k[b, h], from_q, from_k)
        values = dyadic_matrix(v[b, h])
        columns = [[int(x) for x in column] for column in values.integers.transpose().table()]
        for i in range(shape[2]):
            keys = np.flatnonzero(visible[b, h, i]).tolist()
            if not keys:
                continue
            scores = {j: _score(arguments[i][j], mix, bias[b, h, i, j]) for j in keys}
            row, name = _row(scores, start), f"batch {b}, head {h}, row {i}"
            lse[b, h, i] = row.lse(rounded_to, start, name)
            for c, column in enumerate(columns):
                output[b, h, i, c] = row.output(column, values.exponent, rounded_to, start, f"{name}, column {c}")
    return ExactResult(output, lse)


def _arguments(
    query: NDArray[np.float64], key: NDArray[np.float64], w_q: NDArray[np.float64], w_k: NDArray[np.float64]
) -> list[list[list[Fraction]]]:
    """Return W_q q_i + W_k k_j exactly, (q_len, k_len, hidden)."""
    from_query = dyadic_matrix(query).times_transposed(dyadic_matrix(w_q)).fractions()
    from_key = dyadic_matrix(key).times_transposed(dyadic_matrix(w_k)).fractions()
    return [[[a + b for a, b in zip(qs, ks, strict=True)] for ks in from_key] for qs in from_query]


def _score(arguments: list[Fraction], v_a: NDArray[np.float64], bias: float) -> Score:
    """Return the score sum_h v_h tanh(x_h) + bias as its pairs."""
    coefficients: dict[Fraction, Fraction] = {}
    for x, v in zip(arguments, v_a.tolist(), strict=True):
        coefficients[abs(x)] = coefficients.get(abs(x), Fraction(0)) + (Fraction(v) if x > 0 else -Fraction(v))
    return Score(Fraction(bias), tuple(sorted((x, c) for x, c in coefficients.items() if x and c)))


def _ball(score: Score) -> arb:
    """Return a score as a ball of the working precision."""
    return sum((_number(c) * _number(x).tanh() for x, c in score.pairs), _number(score.bias))


def _number(x: Fraction) -> arb:
    return arb(x.numerator) / arb(x.denominator)


def _row(score_of: dict[int, Score], bits: int) -> _Row:
    """Group the keys of a row by score. The first group's score is the largest, as far as `bits` bits tell."""
    members: dict[Score, list[int]] = {}
    for key, score in score_of.items():
        members.setdefault(score, []).append(key)
    with working_precision(bits):
        first = max(members, key=lambda score: float(_ball(score)))
    ordered = sorted(members, key=lambda score: score != first)
    return _Row(ordered, [members[score] for score in ordered])


def _visible_and_bias(
    mask: NDArray[np.generic] | None, shape: Sequence[int]
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which slots a mask shows and what it adds to the scores, both (batch, heads, q_len, k_len)."""
    given = np.ones(1, dtype=np.bool_) if mask is None else np.asarray(mask)
    if given.dtype != np.bool_ and given.dtype.name not in FLOAT_DTYPES:
        raise InputError(f"attn_mask is {given.dtype}: use bool or {', '.join(FLOAT_DTYPES)}")
    try:
        whole = np.broadcast_to(given, shape)
    except ValueError:
        raise InputError(f"attn_mask has shape {given.shape}: use one that broadcasts to {tuple(shape)}") from None
    if whole.dtype == np.bool_:
        return whole, np.zeros(shape)
    visible = whole != -np.inf
    bias = np.where(visible, whole, 0).astype(np.float64)
    if not np.isfinite(bias).all():
        raise InputError("attn_mask holds a NaN or +inf: the exact oracle takes finite numbers and -inf, which hides")
    return visible, bias
