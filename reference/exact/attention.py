"""Scaled dot-product attention, softmax(scale Q K^T + bias) V, every entry proven correctly rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnspec.reference.exact.head import attend
from attnspec.reference.exact.inputs import checked_input, checked_scale, checked_softcap
from attnspec.reference.exact.scale import scale_of
from attnspec.reference.exact.visibility import UPPER_LEFT
from attnspec.spec.dtypes import FLOAT64, Format


@dataclass(frozen=True)
class ExactResult:
    """The true results, rounded once: output (batch, q_heads, q_len, value_dim), lse (batch, q_heads, q_len)."""

    output: NDArray[np.float64]
    lse: NDArray[np.float64]


def attention(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    *,
    attn_mask: NDArray[np.bool_] | NDArray[np.floating] | None = None,
    is_causal: bool = False,
    causal_alignment: str = UPPER_LEFT,
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: NDArray[np.integer] | None = None,
    sinks: NDArray[np.floating] | None = None,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: NDArray[np.floating] | None = None,
    alibi_form: str = "symmetric",
    alibi_alignment: str = UPPER_LEFT,
    rounded_to: Format = FLOAT64,
) -> ExactResult:
    """Return attention and its log-sum-exp, each entry the true real number rounded once to `rounded_to`.

    query: (batch, q_heads, q_len, head_dim); key: (kv_batch, kv_heads, k_len, head_dim); value: (kv_batch, kv_heads,
    k_len, value_dim), with kv_batch batch or 1; float16, float32 or float64, read as exact numbers.
    attn_mask: broadcasts to (batch, q_heads, q_len, k_len). bool: True takes part; float: added to the scaled score in
    its natural units, and -inf excludes the slot. is_causal hides keys too, and both apply.
    key_lengths: (batch,), int32 or int64: how many keys of each batch element exist, from the first on; None is all.
    What key, value and attn_mask hold beyond is not read. The lower-right corner lies at each one's own last key.
    sinks: (q_heads,), a score of each head that joins every row's softmax and has no value; -inf is none.
    window_size: (left, right), the keys around the diagonal that a row sees, -1 for an open side; None is all.
    softcap: c of c tanh(s / c), taken of the scaled scores before the bias; 0 and None are none.
    alibi_slopes: (q_heads,) or (batch, q_heads), by how much a score falls with the distance from the diagonal of
    alibi_alignment, of the form alibi_form; None is none.
    scale: None is the real number 1/sqrt(head_dim), another is its exact float64 value.
    A row that sees no key has output 0 and lse -inf; zeros are +0. lse is the natural logarithm.

    Raises InputError for arguments that do not fit and for a NaN or an infinity that a query sees, UndecidedError
    where PRECISION_CAP bits do not prove a rounding. Rules `attention.scale-default`, `mask.bias-then-mask`,
    `mask.hidden-values`, `mask.hidden-nan`, `mask.causal-upper-left`, `mask.causal-lower-right`,
    `mask.fully-masked-row`, `grouped.head-map`, `softmax.lse`, `key-lengths.visible`, `key-lengths.absent`,
    `key-lengths.causal`, `key-lengths.zero`, `window.bounds`, `window.combine`, `sinks.weight`, `sinks.lse`,
    `alibi.bias`, `alibi.form`, `alibi.offset`. Source: Vaswani et al. 2017, section 3.2.1.
    """
    given = checked_input(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
        sinks=sinks,
        window_size=window_size,
        alibi_slopes=alibi_slopes,
        alibi_form=alibi_form,
        alibi_alignment=alibi_alignment,
    )
    factor = scale_of(checked_scale(scale), given.query.shape[3])
    cap = checked_softcap(softcap)
    output = np.zeros(given.output_shape)
    lse = np.full(given.output_shape[:3], -math.inf)
    for batch, head in np.ndindex(given.output_shape[:2]):
        name = f"batch {batch}, head {head}"
        found = attend(given.head(batch, head), factor, rounded_to, name, cap)
        output[batch, head], lse[batch, head] = found
    return ExactResult(output, lse)
