"""Attention with a given dropout mask, o_i = sum_j D_ij p_ij v_j, every entry proven correctly rounded.

D_ij = keep_ij / (1 - p) is rational. So o_i is 1 / (1 - p) times attention of row i over the values keep_ij v_j: a
rational base and an offset in balls, both times the factor.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnspec.reference.exact.attention import ExactResult, attention
from attnspec.reference.exact.dyadic import dyadic_matrix
from attnspec.reference.exact.inputs import checked_input, checked_scale
from attnspec.reference.exact.mean import GroupedMean
from attnspec.reference.exact.precision import first_precision, until_decided
from attnspec.reference.exact.rounding import round_near, round_to
from attnspec.reference.exact.scale import scale_of
from attnspec.reference.exact.scores import Scores, exact_scores
from attnspec.reference.exact.ties import Group, groups_of_row
from attnspec.reference.exact.visibility import UPPER_LEFT
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError


def dropped_attention(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    *,
    dropout_p: float,
    keep: NDArray[np.bool_],
    attn_mask: NDArray[np.bool_] | NDArray[np.floating] | None = None,
    is_causal: bool = False,
    causal_alignment: str = UPPER_LEFT,
    scale: float | None = None,
    enable_gqa: bool = False,
    rounded_to: Format = FLOAT64,
) -> ExactResult:
    """Return attention after dropout, and its lse, each entry the true real number rounded once to `rounded_to`.

    dropout_p: the probability of a drop, 0 to 1, read as the exact number that it is; keep: which weights are kept,
    (batch, q_heads, q_len, k_len). The other arguments, the shapes and what is raised are those of
    `attnspec.reference.exact.attention.attention`. The lse is that of the scores. Rules: `dropout.inverted`,
    `dropout.on-weights`, `dropout.lse`, `dropout.one`. Source: Srivastava et al. 2014, section 10.
    """
    given = checked_input(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        enable_gqa=enable_gqa,
    )
    factor = keep_factor(dropout_p, keep, given.visible.shape)
    lse = attention(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        rounded_to=rounded_to,
    ).lse
    output = np.zeros(given.output_shape)
    start = first_precision(rounded_to, given.key.shape[2])
    for b, h, i in np.ndindex(given.output_shape[:3]):
        keys = np.flatnonzero(given.visible[b, h, i]).tolist()
        if keys:
            head = given.head(b, h)
            bias = None if head.bias is None else head.bias[i : i + 1]
            scores = exact_scores(head.query[i : i + 1], head.key, bias, scale_of(checked_scale(scale), query.shape[3]))
            kept = np.where(keep[b, h, i][:, None], head.value, 0.0)  # (k_len, value_dim)
            groups = groups_of_row(scores, 0, keys)
            output[b, h, i] = _row(scores, groups, kept, factor, rounded_to, start, f"batch {b}, head {h}, row {i}")
    return ExactResult(output, lse)


def keep_factor(dropout_p: float, keep: NDArray[np.bool_], shape: tuple[int, ...]) -> Fraction:
    """Return 1 / (1 - p) exactly, 0 for p = 1. Raises InputError for a p outside [0, 1] or a mask of another shape."""
    if not 0 <= dropout_p <= 1:
        raise InputError(f"dropout_p is {dropout_p}: use a probability from 0 to 1")
    if keep.dtype != np.bool_ or keep.shape != shape:
        raise InputError(f"keep is {keep.dtype} {keep.shape}: use bool {shape}")
    return 1 / (1 - Fraction(dropout_p)) if dropout_p < 1 else Fraction(0)


def _row(
    scores: Scores,
    groups: list[Group],
    kept: NDArray[np.float64],
    factor: Fraction,
    fmt: Format,
    start: int,
    name: str,
) -> list[float]:
    """Return the output of one row, (value_dim,)."""
    values = dyadic_matrix(kept)
    counts = [len(group.keys) for group in groups]
    row = []
    for c, column in enumerate(values.integers.transpose().table()):
        mean = GroupedMean(counts, [sum(int(column[key]) for key in group.keys) for group in groups], values.exponent)

        def attempt(mean: GroupedMean = mean) -> float | None:
            gaps = scores.balls([group.score for group in groups], origin=groups[0].score)
            offset = mean.offset([gap.exp() for gap in gaps])
            return round_near(mean.base * factor, offset * factor.numerator / arb(factor.denominator), fmt)

        rational = factor == 0 or not any(mean.pulls)
        row.append(
            round_to(mean.base * factor, fmt) if rational else until_decided(attempt, start, f"{name}, column {c}")
        )
    return row
