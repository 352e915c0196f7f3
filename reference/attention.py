"""Scaled dot-product attention, softmax(Q K^T / sqrt(d)) V, as documented and in float64 (chapter "attention")."""

from __future__ import annotations

import math
from numbers import Real

import torch

from attnspec.reference import alibi, dropout, grouped_heads, lengths, masks
from attnspec.reference import softcap as caps
from attnspec.reference.sinks import as_scores
from attnspec.reference.softmax import lse, softmax
from attnspec.spec.call import Call, Result
from attnspec.spec.errors import InputError


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    alibi_form: str = "symmetric",
    alibi_alignment: str = "upper_left",
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    keep: torch.Tensor | None = None,
) -> Result:
    """Return output, lse and weights of attention, all in float64.

    query: (batch, q_heads, q_len, head_dim); key: (batch, kv_heads, k_len, head_dim); value: (batch, kv_heads, k_len,
    value_dim), of any floating dtype; a key and value batch of 1 serves every query batch. attn_mask: bool or
    additive, of a shape that broadcasts to (batch, q_heads, q_len, k_len). scale: None is 1/sqrt(head_dim).
    key_lengths: (batch,), int32 or int64, how many keys of each batch element exist; None is all. window_size: (left,
    right), the keys around the diagonal that a row sees, -1 for no bound; None is all. softcap: the cap of the scaled
    scores, 0 and None for none. sinks: (q_heads,), a score of each head that joins every row's softmax; None is none.
    alibi_slopes: (q_heads,) or (batch, q_heads), by how much a score falls with the distance from the diagonal of
    alibi_alignment, of the form alibi_form; None is none. dropout_p: the probability that a weight is dropped; keep:
    which are kept, bool (batch, q_heads, q_len, k_len), needed where dropout_p is not 0. Returns output (batch,
    q_heads, q_len, value_dim), lse (batch, q_heads, q_len) and weights (batch, q_heads, q_len, k_len), after dropout.
    Raises InputError where shapes or dtypes do not fit, or scale, a length, the window or dropout_p is out of range.
    Rules: `attention.output`, `attention.scale-default`, `attention.scale-explicit`, `key-lengths.absent`,
    `window.bounds`, `softcap.scores`, `softcap.lse`, `sinks.weight`, `alibi.bias`, `dropout.on-weights`, `dropout.lse`.
    Source: Vaswani et al. 2017, equation 1.
    """
    check_inputs(query, key, value, enable_gqa)
    if key_lengths is not None:
        key = lengths.clear_absent(key, query.shape[0], key_lengths)  # (batch, kv_heads, k_len, head_dim)
        value = lengths.clear_absent(value, query.shape[0], key_lengths)  # (batch, kv_heads, k_len, value_dim)
    scale = softmax_scale(scale, query.shape[-1])
    query, key, value = query.double(), key.double(), value.double()
    key = grouped_heads.expand(key, query.shape[1])  # (batch, q_heads, k_len, head_dim)
    value = grouped_heads.expand(value, query.shape[1])  # (batch, q_heads, k_len, value_dim)
    scores = caps.apply(scale * (query @ key.transpose(-1, -2)), softcap)  # (batch, q_heads, q_len, k_len)
    shape = (scores.shape[0], scores.shape[1], scores.shape[2], scores.shape[3])
    scores = scores + masks.bias(shape, attn_mask)
    if alibi_slopes is not None:
        scores = scores + alibi.of_scores(
            shape, alibi_slopes, form=alibi_form, alignment=alibi_alignment, key_lengths=key_lengths
        )
    visible = masks.visible(shape, attn_mask, is_causal, causal_alignment, key_lengths, window_size)
    sink = None if sinks is None else as_scores(sinks, shape[1])  # (q_heads, 1)
    weights = softmax(scores, visible, sink)  # (batch, q_heads, q_len, k_len)
    if dropout_p != 0:
        if keep is None:
            raise InputError(f"dropout_p is {dropout_p} and keep is None: give the mask that was drawn")
        weights = dropout.apply(weights, keep, dropout_p)
    output = weights @ value  # (batch, q_heads, q_len, value_dim)
    return Result(output=output, lse=lse(scores, visible, sink), weights=weights)


def answer(call: Call, causal_alignment: str = "upper_left", keep: torch.Tensor | None = None) -> Result:
    """Return what the reference says of a call: `attention` with the call's arguments. keep: the mask that its dropout
    drew. Raises InputError for a call with dropout without it."""
    return attention(
        call.query,
        call.key,
        call.value,
        attn_mask=call.attn_mask,
        is_causal=call.is_causal,
        causal_alignment=causal_alignment,
        scale=call.scale,
        enable_gqa=call.enable_gqa,
        key_lengths=call.key_lengths,
        sinks=call.sinks,
        alibi_slopes=call.alibi_slopes,
        alibi_form=call.alibi_form,
        alibi_alignment=call.alibi_alignment,
        window_size=call.window_size,
        softcap=call.softcap,
        dropout_p=call.dropout_p,
        keep=keep,
    )


def softmax_scale(scale: float | None, head_dim: int) -> float:
    """Return the factor of the scores, 1/sqrt(head_dim) for None. Raises InputError unless it is a finite number.
    Rules: `attention.scale-default`, `attention.scale-explicit`."""
    if scale is None:
        return 1 / math.sqrt(head_dim)
    if not isinstance(scale, Real) or not math.isfinite(scale):
        raise InputError(f"scale is {scale!r}: use a finite number, or None for 1/sqrt(head_dim)")
    return float(scale)


def check_inputs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> None:
    """Raise InputError where the tensors of a call do not fit each other. Rules: `notation.shapes`,
    `notation.dtypes`."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        if tensor.ndim != 4:
            raise InputError(f"{name} has {tensor.ndim} dimensions: use (batch, heads, length, dim)")
        if tensor.dtype != query.dtype or not tensor.dtype.is_floating_point:
            raise InputError(f"{name} is {tensor.dtype} and query is {query.dtype}: use one floating dtype")
        if tensor.device != query.device:
            raise InputError(f"{name} is on {tensor.device} and query is on {query.device}: use one device")
    if key.shape[-1] != query.shape[-1]:
        raise InputError(f"key has head_dim {key.shape[-1]} and query has {query.shape[-1]}: use the same")
    if key.shape[:3] != value.shape[:3]:
        raise InputError(f"key {tuple(key.shape)} and value {tuple(value.shape)} differ in batch, heads or length")
    if key.shape[0] not in (1, query.shape[0]):
        raise InputError(f"key has batch {key.shape[0]} and query has {query.shape[0]}: use the same, or 1")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InputError(f"{query.shape[1]} query heads and {key.shape[1]} key heads: set enable_gqa=True")
