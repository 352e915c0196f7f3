"""Multi-head attention with its projections, Concat(head_1, ..., head_h) W^O + b, each entry proven correctly rounded.

The projections are exact: tokens and parameters are dyadic numbers. The output projection is linear in the values, so
it is applied to them, exactly, before they are averaged: y_i = b + sum_h sum_j p_hij (v_hj W^O_h). What remains is a
sum of means, one a head: a rational base plus offsets in balls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import arb, fmpz, fmpz_mat
from numpy.typing import NDArray

from attnspec.reference.exact.dyadic import DyadicMatrix, dyadic_matrix
from attnspec.reference.exact.inputs import finite
from attnspec.reference.exact.mean import GroupedMean
from attnspec.reference.exact.precision import first_precision, until_decided
from attnspec.reference.exact.rounding import round_near, round_to
from attnspec.reference.exact.scale import Scale, scale_of
from attnspec.reference.exact.scores import Scores
from attnspec.reference.exact.ties import Group, groups_of_row
from attnspec.reference.exact.visibility import UPPER_LEFT, causal_visible
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError


@dataclass(frozen=True)
class Projections:
    """The parameters of a module, each weight (out, in) as in x W^T + b, each bias (out,) or None.

    w_q: (num_heads * d_k, d_model); w_k: (num_kv_heads * d_k, kdim); w_v: (num_kv_heads * d_v, vdim); w_o: (d_model,
    num_heads * d_v).
    """

    w_q: NDArray[np.floating]
    w_k: NDArray[np.floating]
    w_v: NDArray[np.floating]
    w_o: NDArray[np.floating]
    b_q: NDArray[np.floating] | None = None
    b_k: NDArray[np.floating] | None = None
    b_v: NDArray[np.floating] | None = None
    b_o: NDArray[np.floating] | None = None


@dataclass(frozen=True)
class _HeadRow:
    """What one query of one head sees: groups of equal score, and the values after the output projection."""

    scores: Scores
    groups: list[Group]
    values: list[list[int]]  # (k_len, d_model), in units of 2^exponent
    exponent: int

    def mean(self, column: int) -> GroupedMean:
        """Return the head's part of one output element."""
        sums = [sum(self.values[key][column] for key in group.keys) for group in self.groups]
        return GroupedMean([len(group.keys) for group in self.groups], sums, self.exponent)

    def weights(self) -> list[arb]:
        """Return e^(s_g - s_0) of each group, balls of the working precision."""
        gaps = self.scores.balls([group.score for group in self.groups], origin=self.groups[0].score)
        return [gap.exp() for gap in gaps]


def multi_head(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    projections: Projections,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    mask: NDArray[np.generic] | None = None,
    is_causal: bool = False,
    rounded_to: Format = FLOAT64,
) -> NDArray[np.float64]:
    """Return MultiHead(Q, K, V), (batch, q_len, d_model), each entry the true number rounded once to `rounded_to`.

    query: (batch, q_len, d_model); key: (batch, k_len, kdim); value: (batch, k_len, vdim); float16, float32 or
    float64, finite everywhere, read as exact numbers. mask: 0 hides a slot, anything else shows it; it broadcasts to
    (batch, num_heads, q_len, k_len). is_causal: row i also sees no key j > i.
    A head that sees no key gives 0, so a row in which none does gives the bias of the output projection.

    Raises InputError for arguments that do not fit, UndecidedError where PRECISION_CAP bits do not prove a rounding.
    That is possible where the offsets of heads cancel each other exactly and the base is on a rounding boundary.
    Rules `multi-head.projections`, `multi-head.split`, `multi-head.concat-order`, `multi-head.output-projection`,
    `multi-head.mask-convention`, `multi-head.empty-row`. Source: Vaswani et al. 2017, section 3.2.2.
    """
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    tokens = [finite(name, x, 3) for name, x in (("query", query), ("key", key), ("value", value))]
    shape = (len(tokens[0]), num_heads, tokens[0].shape[1], tokens[1].shape[1])  # (batch, num_heads, q_len, k_len)
    _check_heads(projections, num_heads, kv_heads)
    if any(len(x) != shape[0] for x in tokens) or tokens[2].shape[1] != shape[3]:
        raise InputError(f"query, key, value have shapes {[x.shape for x in tokens]}: use one batch, one key length")
    visible = _visible(mask, shape)
    if is_causal:
        visible = visible & causal_visible(shape[2], shape[3], UPPER_LEFT)
    bias = [Fraction(0)] * len(projections.w_o)
    if projections.b_o is not None:
        bias = [Fraction(x) for x in finite("b_o", projections.b_o, 1).tolist()]
    start = first_precision(rounded_to, shape[3] * num_heads)
    output = np.zeros((shape[0], shape[2], len(projections.w_o)))
    for b in range(shape[0]):
        heads = _heads(tokens[0][b], tokens[1][b], tokens[2][b], projections, num_heads, kv_heads)
        for i in range(shape[2]):
            seen = [np.flatnonzero(visible[b, h, i]).tolist() for h in range(num_heads)]
            rows = [
                _HeadRow(scores, groups_of_row(scores, i, keys), values, exponent)
                for (scores, values, exponent), keys in zip(heads, seen, strict=True)
                if keys
            ]
            for c, base in enumerate(bias):
                output[b, i, c] = _entry(rows, c, base, rounded_to, start, f"batch {b}, row {i}, column {c}")
    return output


def _entry(rows: list[_HeadRow], column: int, bias: Fraction, fmt: Format, start: int, name: str) -> float:
    """Return one output element, bias + sum of the heads' means, rounded."""
    means = [row.mean(column) for row in rows]
    base = bias + sum((mean.base for mean in means), Fraction(0))
    moving = [(row, mean) for row, mean in zip(rows, means, strict=True) if any(mean.pulls)]
    if not moving:
        return round_to(base, fmt)

    def attempt() -> float | None:
        return round_near(base, sum((mean.offset(row.weights()) for row, mean in moving), arb(0)), fmt)

    return until_decided(attempt, start, f"output of {name}")


def _heads(
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    value: NDArray[np.float64],
    given: Projections,
    num_heads: int,
    kv_heads: int,
) -> list[tuple[Scores, list[list[int]], int]]:
    """Return, for each query head, its scores, its values after the output projection, and their exponent."""
    q, k = _affine(query, given.w_q, given.b_q, "w_q"), _affine(key, given.w_k, given.b_k, "w_k")
    v, w_o = _affine(value, given.w_v, given.b_v, "w_v"), finite("w_o", given.w_o, 2)
    d_k, d_v = len(given.w_q) // num_heads, len(given.w_v) // kv_heads
    scale = scale_of(None, d_k)
    heads = []
    for h in range(num_heads):
        source = h // (num_heads // kv_heads)
        query_head, key_head = _columns(q, h * d_k, d_k), _columns(k, source * d_k, d_k)
        out = _columns(v, source * d_v, d_v).times_transposed(dyadic_matrix(w_o[:, h * d_v : (h + 1) * d_v]))
        values = [[int(x) for x in row] for row in out.integers.table()]  # (k_len, d_model)
        heads.append((_scores(query_head.times_transposed(key_head), scale), values, out.exponent))
    return heads


def _scores(products: DyadicMatrix, scale: Scale) -> Scores:
    """Return scale * q.k of exact products, (q_len, k_len)."""
    unit = Fraction(2) ** products.exponent * scale.rational
    zero, rational = fmpz(0), scale.radicand == 1
    rows = [[(zero, x) if rational else (x, zero) for x in row] for row in products.integers.table()]
    return Scores(rows, unit, scale.radicand)


def _affine(
    tokens: NDArray[np.float64], weight: NDArray[np.floating], bias: NDArray[np.floating] | None, name: str
) -> DyadicMatrix:
    """Return x W^T + b, (length, out), exactly: the bias is a last column of W, and 1 a last column of x."""
    wide = finite(name, weight, 2)
    if tokens.shape[1] != wide.shape[1]:
        raise InputError(f"{name} is {wide.shape} and its tokens have {tokens.shape[1]} elements: make them equal")
    added = np.zeros(len(wide)) if bias is None else finite(f"bias of {name}", bias, 1)
    if len(added) != len(wide):
        raise InputError(f"{name} is {wide.shape} and its bias has {len(added)} elements: use {len(wide)}")
    ones = np.ones((len(tokens), 1))
    return dyadic_matrix(np.hstack([tokens, ones])).times_transposed(dyadic_matrix(np.hstack([wide, added[:, None]])))


def _columns(matrix: DyadicMatrix, start: int, count: int) -> DyadicMatrix:
    """Return `count` columns of a matrix, from `start` on."""
    rows = [row[start : start + count] for row in matrix.integers.table()]
    return DyadicMatrix(fmpz_mat(len(rows), count, [x for row in rows for x in row]), matrix.exponent)


def _visible(mask: NDArray[np.generic] | None, shape: Sequence[int]) -> NDArray[np.bool_]:
    """Return the visible set (batch, num_heads, q_len, k_len) of a mask in which 0 is masked."""
    if mask is None:
        return np.ones(shape, dtype=np.bool_)
    try:
        return np.broadcast_to(np.asarray(mask) != 0, shape)
    except ValueError:
        raise InputError(f"mask has shape {np.shape(mask)}: use one that broadcasts to {tuple(shape)}") from None


def _check_heads(given: Projections, num_heads: int, kv_heads: int) -> None:
    """Raise InputError where the projections do not split into the heads."""
    for name in ("w_q", "w_k", "w_v", "w_o"):
        finite(name, getattr(given, name), 2)
    if min(num_heads, kv_heads) < 1 or num_heads % kv_heads:
        raise InputError(f"{num_heads} query heads over {kv_heads} key heads: use a multiple")
    widths = {"w_q": len(given.w_q), "w_k": len(given.w_k), "w_v": len(given.w_v), "w_o": given.w_o.shape[-1]}
    d_k, d_v = widths["w_q"] // num_heads, widths["w_v"] // kv_heads
    fitting = {"w_q": num_heads * d_k, "w_k": kv_heads * d_k, "w_v": kv_heads * d_v, "w_o": num_heads * d_v}
    if widths != fitting or 0 in (d_k, d_v):
        raise InputError(f"projections have widths {widths}: {num_heads} and {kv_heads} heads ask for {fitting}")
    if given.b_o is not None and given.b_o.shape != (len(given.w_o),):
        raise InputError(f"b_o has shape {given.b_o.shape}: use {(len(given.w_o),)}")
