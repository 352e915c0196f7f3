"""Latent attention, every entry proven correctly rounded: scores q W^UK c + q_rope k_rope and values W^UV c are exact.

Queries, cache and matrices are dyadic numbers, so the products are integers times a power of two, which float64 need
not hold. From there on it is the exact attention: groups of equal score, a rational base and an offset in balls.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from flint import fmpz
from numpy.typing import NDArray

from attnspec.reference.exact.attention import ExactResult
from attnspec.reference.exact.dyadic import DyadicMatrix, dyadic_matrix
from attnspec.reference.exact.inputs import checked_scale, finite
from attnspec.reference.exact.precision import first_precision
from attnspec.reference.exact.scale import Scale, scale_of
from attnspec.reference.exact.scores import Scores
from attnspec.reference.exact.ties import GroupedRow, groups_of_row
from attnspec.reference.exact.visibility import UPPER_LEFT, causal_visible
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError


def latent_attention(
    query: NDArray[np.floating],
    latent: NDArray[np.floating],
    key_rope: NDArray[np.floating],
    w_uk: NDArray[np.floating],
    w_uv: NDArray[np.floating],
    *,
    is_causal: bool = False,
    causal_alignment: str = UPPER_LEFT,
    scale: float | None = None,
    rounded_to: Format = FLOAT64,
) -> ExactResult:
    """Return latent attention and its lse, each entry the true real number rounded once to `rounded_to`.

    query: (batch, heads, q_len, nope_dim + rope_dim); latent: (batch, k_len, kv_rank); key_rope: (batch, k_len,
    rope_dim), as given, rotated or not; w_uk: (heads, nope_dim, kv_rank); w_uv: (heads, value_dim, kv_rank); float16,
    float32 or float64, finite. scale: None is the real number 1/sqrt(nope_dim + rope_dim). A row that sees no key has
    output 0 and lse -inf. Raises InputError for arguments that do not fit, UndecidedError where PRECISION_CAP bits do
    not prove a rounding. Rules `latent.expanded`, `latent.scale`. Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.
    """
    named = {
        "query": (query, 4),
        "latent": (latent, 3),
        "key_rope": (key_rope, 3),
        "w_uk": (w_uk, 3),
        "w_uv": (w_uv, 3),
    }
    q, c, k_rope, up_k, up_v = (finite(name, *given) for name, given in named.items())
    batch, heads, q_len, head_dim = q.shape
    nope_dim, kv_rank = up_k.shape[1:]
    if up_k.shape[0] != heads or up_v.shape[::2] != (heads, kv_rank) or c.shape[::2] != (batch, kv_rank):
        raise InputError(f"query {q.shape}, latent {c.shape}, w_uk {up_k.shape}, w_uv {up_v.shape} do not fit")
    if k_rope.shape != (*c.shape[:2], head_dim - nope_dim):
        raise InputError(f"key_rope has shape {k_rope.shape}: use {(*c.shape[:2], head_dim - nope_dim)}")
    k_len, start = c.shape[1], first_precision(rounded_to, c.shape[1])
    visible = np.ones((q_len, k_len), dtype=np.bool_)
    if is_causal:
        visible = causal_visible(q_len, k_len, causal_alignment)
    output, lse = np.zeros((batch, heads, q_len, up_v.shape[1])), np.full((batch, heads, q_len), -np.inf)
    for b, h in np.ndindex(batch, heads):
        compressed = dyadic_matrix(c[b])
        keys = compressed.times_transposed(dyadic_matrix(up_k[h]))  # (k_len, nope_dim)
        values = compressed.times_transposed(dyadic_matrix(up_v[h]))  # (k_len, value_dim)
        of_nope = dyadic_matrix(q[b, h, :, :nope_dim]).times_transposed(keys)  # (q_len, k_len)
        of_rope = dyadic_matrix(q[b, h, :, nope_dim:]).times_transposed(dyadic_matrix(k_rope[b]))
        scores = _scores(of_nope, of_rope, scale_of(checked_scale(scale), head_dim))
        columns = [[int(x) for x in column] for column in values.integers.transpose().table()]
        for i in np.flatnonzero(visible.any(axis=1)).tolist():
            groups = groups_of_row(scores, i, np.flatnonzero(visible[i]).tolist())
            row = GroupedRow(scores, groups, rounded_to, start, f"batch {b}, head {h}, row {i}")
            lse[b, h, i] = row.lse()
            output[b, h, i] = [row.output(x, values.exponent, f"column {n}") for n, x in enumerate(columns)]
    return ExactResult(output, lse)


def _scores(of_nope: DyadicMatrix, of_rope: DyadicMatrix, scale: Scale) -> Scores:
    """Return scale * (of_nope + of_rope), (q_len, k_len), exactly."""
    exponent = min(of_nope.exponent, of_rope.exponent)
    left, right = (m.integers * (1 << (m.exponent - exponent)) for m in (of_nope, of_rope))
    scaled = (left + right) * scale.rational.numerator
    zero, rational = fmpz(0), scale.radicand == 1
    rows = [[(zero, x) if rational else (x, zero) for x in row] for row in scaled.table()]
    return Scores(rows, Fraction(2) ** exponent / scale.rational.denominator, scale.radicand)
