"""Packed sequences: the tokens of a batch laid end to end, without padding (chapter "packed")."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch

from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.reference.lengths import check
from attnspec.spec.call import Gradients, Result
from attnspec.spec.errors import InputError


class Member(NamedTuple):
    """One sequence of a pack: where its queries and its keys lie. Either may be empty."""

    queries: slice
    keys: slice


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    key_lengths: torch.Tensor | None = None,
    window_size: tuple[int, int] | None = None,
) -> Result:
    """Return attention of each sequence of a pack over its own keys, in float64; weights are None.

    query: (total_q, q_heads, head_dim); key: (total_k, kv_heads, head_dim); value: (total_k, kv_heads, value_dim), of
    one floating dtype, kv_heads a divisor of q_heads. cu_seqlens_q, cu_seqlens_k: (batch + 1,), int32 or int64: the
    queries of sequence b are the tokens cu_seqlens_q[b] to cu_seqlens_q[b + 1] - 1, its keys likewise. key_lengths:
    (batch,), int32 or int64, how many of a sequence's keys exist, from its first on; None is all. window_size: (left,
    right), as in `attnspec.reference.attention.attention`. Causal diagonal and window are those of each sequence alone.
    Returns output (total_q, q_heads, value_dim) and lse (q_heads, total_q); tokens behind the last boundary have output
    0 and lse -inf. Raises InputError where shapes, dtypes, boundaries, lengths or windows do not fit. Rules:
    `packed.separate`, `packed.causal`, `packed.window`, `packed.zero-length`, `packed.boundaries`,
    `packed.key-lengths`, `packed.tail`. Source: flash-attention, `flash_attn_varlen_func`; PyTorch, `varlen_attn`.
    """
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=torch.float64)  # (total_q, q_heads, value_dim)
    lse = torch.full(query.shape[:2], -torch.inf, dtype=torch.float64).T  # (q_heads, total_q)
    for queries, keys in members(query, key, value, cu_seqlens_q, cu_seqlens_k, key_lengths):
        result = attention(
            alone(query, queries),
            alone(key, keys),
            alone(value, keys),
            is_causal=is_causal,
            causal_alignment=causal_alignment,
            scale=scale,
            enable_gqa=True,
            window_size=window_size,
        )
        assert result.lse is not None  # the reference always gives it
        output[queries] = result.output[0].transpose(0, 1)  # (q_len, q_heads, value_dim)
        lse[:, queries] = result.lse[0]  # (q_heads, q_len)
    return Result(output=output, lse=lse)


def packed_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_output: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    key_lengths: torch.Tensor | None = None,
    window_size: tuple[int, int] | None = None,
) -> Gradients:
    """Return the gradients of a loss with respect to a packed query, key and value, in float64.

    query to cu_seqlens_k and is_causal to window_size are those of `packed_attention`. grad_output: (total_q, q_heads,
    value_dim); grad_lse: (q_heads, total_q), None for 0. Tokens behind the last boundary and keys that do not exist
    have gradient 0. Raises InputError as `packed_attention` does, and where the gradients that come in have other
    shapes. Rule: `packed.backward`. Source: flash-attention, `flash_attn_varlen_func`.
    """
    grads = Gradients(*(torch.zeros(x.shape, dtype=torch.float64) for x in (query, key, value)))
    check_rows(query, value, grad_output, grad_lse)
    for queries, keys in members(query, key, value, cu_seqlens_q, cu_seqlens_k, key_lengths):
        of_member = backward(
            alone(query, queries),
            alone(key, keys),
            alone(value, keys),
            alone(grad_output, queries),
            grad_lse=None if grad_lse is None else grad_lse[None, :, queries],
            is_causal=is_causal,
            causal_alignment=causal_alignment,
            scale=scale,
            enable_gqa=True,
            window_size=window_size,
        )
        grads.query[queries] = of_member.query[0].transpose(0, 1)
        grads.key[keys] = of_member.key[0].transpose(0, 1)
        grads.value[keys] = of_member.value[0].transpose(0, 1)
    return grads


def alone(tokens: torch.Tensor, place: slice) -> torch.Tensor:
    """Return some tokens of a pack, (total, heads, dim), as a batch of one sequence, (1, heads, length, dim)."""
    return tokens[place].transpose(0, 1)[None]


def members(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    key_lengths: torch.Tensor | None = None,
) -> Iterator[Member]:
    """Return where the sequences of a pack lie, in order; keys that do not exist are left out.

    Arguments and errors are those of `packed_attention`. Rules: `packed.separate`, `packed.boundaries`,
    `packed.key-lengths`.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim != 3:
            raise InputError(f"{name} has {tensor.ndim} dimensions: use (total, heads, dim)")
    if key.shape[:2] != value.shape[:2]:
        raise InputError(f"key {tuple(key.shape)} and value {tuple(value.shape)} differ in tokens or heads")
    queries = spans(cu_seqlens_q, query.shape[0], "cu_seqlens_q")
    keys = spans(cu_seqlens_k, key.shape[0], "cu_seqlens_k")
    if len(queries) != len(keys):
        raise InputError(f"cu_seqlens_q has {len(queries)} sequences and cu_seqlens_k {len(keys)}: use the same number")
    if key_lengths is not None:
        check(key_lengths, len(keys), key.shape[0])
        for b, (place, length) in enumerate(zip(keys, key_lengths.tolist(), strict=True)):
            if length > place.stop - place.start:
                raise InputError(f"key_lengths has {length} for sequence {b}: use 0 to {place.stop - place.start}")
            keys[b] = slice(place.start, place.start + length)
    return map(Member, queries, keys)


def spans(cu_seqlens: torch.Tensor, total: int, name: str = "cu_seqlens") -> list[slice]:
    """Return the tokens of each sequence, from cu_seqlens[b] to cu_seqlens[b + 1] - 1.

    cu_seqlens: (batch + 1,), int32 or int64, from 0 to at most `total`, never falling. name: what the message calls
    it. Raises InputError. Rule: `packed.boundaries`.
    """
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{name} is {cu_seqlens.dtype}: use torch.int32 or torch.int64")
    if cu_seqlens.ndim != 1 or len(cu_seqlens) == 0:
        raise InputError(f"{name} has shape {tuple(cu_seqlens.shape)}: use (batch + 1,)")
    ends = cu_seqlens.tolist()
    if ends[0] != 0:
        raise InputError(f"{name} starts with {ends[0]}: use 0")
    for b, (start, end) in enumerate(pairwise(ends)):
        if end < start:
            raise InputError(f"{name} falls from {start} to {end} at sequence {b}: use boundaries that never fall")
    if ends[-1] > total:
        raise InputError(f"{name} ends with {ends[-1]}: use {total} at most, the number of tokens")
    return [slice(start, end) for start, end in pairwise(ends)]


def check_rows(
    query: torch.Tensor, value: torch.Tensor, grad_output: torch.Tensor, grad_lse: torch.Tensor | None
) -> None:
    """Raise InputError where the gradients that come in do not have the shapes of a packed output and lse."""
    total_q, q_heads = query.shape[:2]
    if grad_output.shape != (total_q, q_heads, value.shape[-1]):
        raise InputError(f"grad_output has shape {tuple(grad_output.shape)}: use {(total_q, q_heads, value.shape[-1])}")
    if grad_lse is not None and grad_lse.shape != (q_heads, total_q):
        raise InputError(f"grad_lse has shape {tuple(grad_lse.shape)}: use {(q_heads, total_q)}")
