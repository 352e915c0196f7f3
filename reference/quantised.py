"""Quantised keys and values: 8-bit numbers times scales (chapter "quantised")."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of each storage dtype. Source for e4m3: Micikevicius et al. 2022, table 1."""

LOWEST = {torch.int8: -128.0, torch.float8_e4m3fn: -448.0}
E4M3_MANTISSA_BITS = 3
E4M3_SMALLEST_EXPONENT = -6


def quantised_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    *,
    rounded_to: torch.dtype | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
) -> Result:
    """Return attention over the numbers that quantised keys and values stand for, in float64.

    query: (batch, q_heads, q_len, head_dim), of any floating dtype; key, value: (batch, kv_heads, k_len, dim), int8 or
    float8_e4m3fn; key_scale, value_scale: as in `dequantise`. rounded_to: the dtype that the kernel rounds scale times
    stored number to, None for none. is_causal to key_lengths: those of `attnspec.reference.attention.attention`. The
    softmax's `scale` is another number than those of the keys. Raises InputError where shapes or dtypes do not fit.
    Rules: `quantised.dequantise`, `quantised.scale-shape`, `quantised.product-rounding`. Source: vLLM, "Quantized KV
    cache"; flash-attention 3, arguments `k_descale` and `v_descale`.
    """
    return attention(
        query.double(),
        dequantise(key, key_scale, "key", rounded_to),
        dequantise(value, value_scale, "value", rounded_to),
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
    )


def quantised_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_scale: torch.Tensor,
    value_scale: torch.Tensor,
    grad_output: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    rounded_to: torch.dtype | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the gradient of the query, float64 of its shape: that of attention over scale times stored number.

    query to value_scale and the options: those of `quantised_attention`; stored numbers have no gradient. grad_output:
    (batch, q_heads, q_len, value_dim); grad_lse: (batch, q_heads, q_len), None for 0. Raises InputError where shapes or
    dtypes do not fit. Rules: `quantised.backward`, `quantised.product-rounding`. Source: Dao et al. 2022
    (FlashAttention), appendix B.2, for keys and values that are products.
    """
    gradients = backward(
        query.double(),
        dequantise(key, key_scale, "key", rounded_to),
        dequantise(value, value_scale, "value", rounded_to),
        grad_output.double(),
        grad_lse=None if grad_lse is None else grad_lse.double(),
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
    )
    return gradients.query


def dequantise(
    stored: torch.Tensor, scale: torch.Tensor, name: str = "tensor", rounded_to: torch.dtype | None = None
) -> torch.Tensor:
    """Return scale * stored, float64 of the shape of `stored`, without rounding, or rounded once to a dtype.

    stored: (batch, kv_heads, k_len, dim), int8 or float8_e4m3fn. scale: float32, bfloat16 or float16, a scalar or four
    dimensions, each 1 or that of `stored`: (1, kv_heads, 1, 1) is one a head, (1, kv_heads, 1, dim) one a channel,
    (batch, kv_heads, k_len, 1) one a token. A product of 24 and 8 bits fits into float64. name: what messages call the
    tensor. rounded_to: None for none. Raises InputError. Rules: `quantised.dequantise`, `quantised.product-rounding`,
    `quantised.scale-shape`.
    """
    check_stored(stored, scale, name)
    product = scale.double() * stored.double()
    return product if rounded_to is None else product.to(rounded_to).double()


def quantise(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return x / scale rounded to the nearest number of `dtype`, ties to even, and cut to its range.

    x: (batch, kv_heads, k_len, dim), of any floating dtype, finite; scale: as in `dequantise`, positive; dtype: int8 or
    float8_e4m3fn. int8 ends at -128 and 127, e4m3 at -448 and 448. Raises InputError. Rule: `quantised.rounding`.
    Source: Jacob et al. 2018, section 2.1, with a zero point of 0; Micikevicius et al. 2022, section 3.
    """
    check_stored(torch.empty(x.shape, dtype=dtype), scale, "x")
    if not bool((scale > 0).all()):
        raise InputError("scale holds a number that is not positive: use positive ones")
    cut = (x.double() / scale.double()).clamp(LOWEST[dtype], LARGEST[dtype])
    if dtype == torch.int8:
        return torch.round(cut).to(dtype)
    _, exponent = torch.frexp(cut)  # abs(cut) < 2^exponent, and at least half of it
    step = 2.0 ** ((exponent - 1).clamp(min=E4M3_SMALLEST_EXPONENT) - E4M3_MANTISSA_BITS).double()
    return (torch.round(cut / step) * step).to(dtype)


def absmax_scale(x: torch.Tensor, dtype: torch.dtype, dims: Sequence[int]) -> torch.Tensor:
    """Return the scale that takes the largest magnitude to the largest number of `dtype`, float32, 1 where all is 0.

    x: (batch, kv_heads, k_len, dim); dims: the dimensions that share a scale: (0, 1, 2, 3) for one a tensor, (0, 2, 3)
    one a head, (0, 2) one a channel, (3,) one a token. The dimensions stay, with size 1. Raises InputError for another
    dtype.
    """
    if dtype not in LARGEST:
        raise InputError(f"dtype is {dtype}: use torch.int8 or torch.float8_e4m3fn")
    largest = x.double().abs().amax(tuple(dims), keepdim=True)
    return torch.where(largest == 0, 1.0, largest / LARGEST[dtype]).float()


def check_stored(stored: torch.Tensor, scale: torch.Tensor, name: str) -> None:
    """Raise InputError where a scale does not fit what it scales. Rule: `quantised.scale-shape`."""
    if stored.dtype not in LARGEST:
        raise InputError(f"{name} is {stored.dtype}: use torch.int8 or torch.float8_e4m3fn")
    if stored.ndim != 4:
        raise InputError(f"{name} has {stored.ndim} dimensions: use (batch, heads, length, dim)")
    if scale.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"scale of {name} is {scale.dtype}: use torch.float32 or a narrower floating dtype")
    fits = scale.ndim == 4 and all(n in (1, of) for n, of in zip(scale.shape, stored.shape, strict=True))
    if scale.ndim != 0 and not fits:
        shape, of = tuple(scale.shape), tuple(stored.shape)
        raise InputError(f"scale of {name} has shape {shape}: use () or four dimensions, each 1 or that of {of}")
