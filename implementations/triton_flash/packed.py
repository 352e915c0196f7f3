"""Attention over packed sequences: the same kernels, told where each sequence begins (chapter "packed")."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from attnspec.implementations.triton_flash.backend import band, check_heads, check_tensors, differentiable
from attnspec.implementations.triton_flash.passes import Sequences, heads_first
from attnspec.spec.errors import InputError


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
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    key_lengths: torch.Tensor | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output (total_q, q_heads, value_dim) in the query's dtype and lse (q_heads, total_q) in float32.

    query: (total_q, q_heads, head_dim); key, value: (total_k, kv_heads, dim), float32, float16 or bfloat16, of any
    strides; cu_seqlens_q, cu_seqlens_k: (batch + 1,), int32 or int64; key_lengths: (batch,), how many keys of each
    sequence exist. Tokens behind the last boundary get output 0 and lse -inf. Both results have gradients. tile: rows
    and keys of a tile, by default the best there is. Raises InputError where an argument does not fit, Unsupported for
    a dtype that the kernels do not have. Rules: chapter "packed". Source: Dao 2023, section 3.1.
    """
    check_packed(query, key, value)
    check_tensors(query, key, value, cu_seqlens_q, cu_seqlens_k, key_lengths)
    if causal_alignment not in ("upper_left", "lower_right"):
        raise InputError(f"causal_alignment is {causal_alignment!r}: use upper_left or lower_right")
    queries = lengths_of("cu_seqlens_q", cu_seqlens_q, len(query))
    stored = lengths_of("cu_seqlens_k", cu_seqlens_k, len(key))
    if len(queries) != len(stored):
        raise InputError(f"cu_seqlens_q has {len(queries)} sequences, cu_seqlens_k {len(stored)}: use as many")
    if key_lengths is not None:
        check_key_lengths(key_lengths, stored)
    left, right = band(window_size, is_causal, len(query) + len(key))
    call = Sequences(
        query=heads_first(query, len(queries)),
        key=heads_first(key, len(queries)),
        value=heads_first(value, len(queries)),
        q_len=max(queries, default=0),
        k_len=max(stored, default=0),
        key_lengths=key_lengths,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        left=left,
        right=right,
        lower_right=causal_alignment == "lower_right",
        scale=scale,
        softcap=softcap,
        tile=tile,
    )
    return differentiable(query, key, value, None, None, call)


def lengths_of(name: str, cu_seqlens: torch.Tensor, total: int) -> list[int]:
    """Return how many tokens each sequence of a pack has. Raises InputError. Rule: `packed.boundaries`."""
    if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64) or len(cu_seqlens) < 1:
        raise InputError(f"{name} is {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}: use int32 or int64, (batch + 1,)")
    ends: list[Any] = cu_seqlens.tolist()
    if ends[0] != 0 or ends != sorted(ends) or ends[-1] > total:
        raise InputError(f"{name} is {ends}: begin with 0, never fall, and end at {total} or before")
    return [end - start for start, end in pairwise(ends)]


def check_key_lengths(key_lengths: torch.Tensor, stored: list[int]) -> None:
    """Raise InputError unless key_lengths has an integer from 0 to what is stored for each sequence. Rules:
    `packed.key-lengths`, `paged.length-range`."""
    if key_lengths.shape != (len(stored),) or key_lengths.dtype not in (torch.int32, torch.int64):
        given = f"{key_lengths.dtype} {tuple(key_lengths.shape)}"
        raise InputError(f"key_lengths is {given}: use int32 or int64, ({len(stored)},)")
    lengths = key_lengths.tolist()
    if any(not 0 <= length <= most for length, most in zip(lengths, stored, strict=True)):
        raise InputError(f"key_lengths is {lengths}: use 0 to {stored}")


def check_packed(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise InputError unless query, key and value are (tokens, heads, dim), of one dtype, and fit each other."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.ndim == key.ndim == value.ndim == 3:
        raise InputError(f"{shapes}: use (tokens, heads, dim)")
    check_heads(shapes, (query, key, value), query.shape[1:], key.shape, value.shape)
