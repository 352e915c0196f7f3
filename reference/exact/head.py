"""Attention of one head: a first try in balls for all of it, then the undecided entries one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_mat
from numpy.typing import NDArray

from attnspec.reference.exact.capped import capped_scores
from attnspec.reference.exact.dyadic import DyadicMatrix, dyadic_matrix
from attnspec.reference.exact.precision import first_precision, working_precision
from attnspec.reference.exact.rounding import round_ball
from attnspec.reference.exact.scale import Scale
from attnspec.reference.exact.scores import HeadScores, exact_scores
from attnspec.reference.exact.ties import GroupedRow, groups_of_row
from attnspec.spec.dtypes import Format


@dataclass(frozen=True)
class HeadInput:
    """What one query head sees: finite numbers, and which keys each query may see.

    query: (q_len, head_dim); key: (k_len, head_dim); value: (k_len, value_dim); bias: (q_len, k_len) or None; float64.
    visible: (q_len, k_len) bool. Hidden slots of the bias are 0. positions: what ALiBi adds to the scores, (q_len,
    k_len), None for nothing.
    """

    query: NDArray[np.float64]
    key: NDArray[np.float64]
    value: NDArray[np.float64]
    bias: NDArray[np.float64] | None
    visible: NDArray[np.bool_]
    positions: DyadicMatrix | None = None


def attend(
    head: HeadInput, scale: Scale, fmt: Format, name: str, softcap: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return output (q_len, value_dim) and lse (q_len,) of one head, rounded to `fmt`.

    A row that sees no key has output 0 and lse -inf (rule `mask.fully-masked-row`). Raises UndecidedError, which names
    the entry of head `name`, where the precision cap does not decide a rounding.
    """
    scores = scores_of(head, scale, softcap)
    value = dyadic_matrix(head.value)
    keys_of_row = [np.flatnonzero(row).tolist() for row in head.visible]
    start = first_precision(fmt, len(head.key))
    outputs, lses = _first_try(scores, value, keys_of_row, fmt, start)
    columns = [[int(v) for v in column] for column in value.integers.transpose().table()]
    for i, keys in enumerate(keys_of_row):
        undecided = [h for h, result in enumerate(outputs[i]) if result is None]
        if lses[i] is not None and not undecided:
            continue
        row = GroupedRow(scores, groups_of_row(scores, i, keys), fmt, start, f"{name}, row {i}")
        if lses[i] is None:
            lses[i] = row.lse()
        for h in undecided:
            outputs[i][h] = row.output(columns[h], value.exponent, f"column {h}")
    shape = (len(head.query), head.value.shape[1])  # spelled out, since an empty list of rows has no columns
    return np.array(outputs, dtype=np.float64).reshape(shape), np.array(lses, dtype=np.float64)


def scores_of(head: HeadInput, scale: Scale, softcap: float) -> HeadScores:
    """Return the scores of a head; softcap: 0 for none."""
    if softcap:
        return capped_scores(head.query, head.key, head.bias, scale, softcap, head.positions)
    return exact_scores(head.query, head.key, head.bias, scale, head.positions)


def _first_try(
    scores: HeadScores, value: DyadicMatrix, keys_of_row: list[list[int]], fmt: Format, bits: int
) -> tuple[list[list[float | None]], list[float | None]]:
    """Return outputs and lse of all rows, None where balls of `bits` bits do not prove a rounding."""
    outputs: list[list[float | None]] = []
    lses: list[float | None] = []
    q_len, k_len, value_dim = len(keys_of_row), value.integers.nrows(), value.integers.ncols()
    with working_precision(bits):
        weights = arb_mat(q_len, k_len)  # 0 in hidden slots, exactly
        largest = [_fill_weights(weights, i, scores, keys) for i, keys in enumerate(keys_of_row)]
        sums = weights * arb_mat(value.integers)  # (q_len, value_dim)
        for i, keys in enumerate(keys_of_row):
            if not keys:
                outputs.append([0.0] * value_dim)
                lses.append(-math.inf)
                continue
            total = sum((weights[i, j] for j in keys), arb(0))
            row = [sums[i, h] / total for h in range(value_dim)]
            outputs.append([round_ball(o, fmt, value.exponent) for o in row])
            lses.append(round_ball(largest[i] + total.log(), fmt))
    return outputs, lses


def _fill_weights(weights: arb_mat, i: int, scores: HeadScores, keys: list[int]) -> arb:
    """Set row i to e^(s_j - max s) for its visible keys, and return max s as a ball (0 for an empty row)."""
    if not keys:
        return arb(0)
    seen = [scores.rows[i][j] for j in keys]
    largest = scores.largest(seen)
    for j, gap in zip(keys, scores.balls(seen, origin=largest), strict=True):
        weights[i, j] = gap.exp()
    return scores.balls([largest])[0]
