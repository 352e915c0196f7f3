"""Attention over pages of a pool: the same forward kernel, which reads each key where the block table says."""

from __future__ import annotations

import torch

from attnspec.implementations.triton_flash.backend import Unsupported, check_heads, check_tensors
from attnspec.implementations.triton_flash.launch import INTERPRETED, SPLIT_KEYS
from attnspec.implementations.triton_flash.packed import check_key_lengths, lengths_of
from attnspec.implementations.triton_flash.passes import Sequences, forward_pass, heads_first
from attnspec.spec.errors import InputError


def paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_table: torch.Tensor,
    key_lengths: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    softcap: float | None = None,
    split_keys: int | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and lse of attention over paged keys and values, the causal diagonal at the lower right.

    query: (batch, q_heads, q_len, head_dim), or packed with cu_seqlens_q (batch + 1,), (total_q, q_heads, head_dim);
    key_pages, value_pages: (num_blocks, page_size, kv_heads, dim); block_table: (batch, max_blocks) and key_lengths:
    (batch,), int32 or int64. split_keys: how many keys each of the splits has that are computed apart and merged, a
    multiple of a tile's; by default some for long sequences. Returns output (batch, q_heads, q_len, value_dim) and lse
    (batch, q_heads, q_len), for packed queries (total_q, q_heads, value_dim) and (q_heads, total_q). No gradients.
    Raises InputError where an argument does not fit, Unsupported for a dtype that the kernels do not have and where a
    gradient is asked for. Rules: chapter "paged", `flash.merge-associative`. Source: Kwon et al. 2023, section 4; Dao,
    Haziza, Massa and Sizov 2023.
    """
    check_tensors(query, key_pages, value_pages, block_table, key_lengths, cu_seqlens_q)
    check_pages(query, key_pages, value_pages, packed=cu_seqlens_q is not None)
    batch, k_len = check_table(key_pages, block_table, key_lengths)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key_pages, value_pages)):
        raise Unsupported("paged attention has no gradients: call it without, as under torch.no_grad()")
    q_len = query.shape[-2]
    if cu_seqlens_q is not None:
        queries = lengths_of("cu_seqlens_q", cu_seqlens_q, len(query))
        if len(queries) != batch:
            raise InputError(f"cu_seqlens_q has {len(queries)} sequences, block_table {batch}: use as many")
        query, q_len = heads_first(query, batch), max(queries, default=0)
    elif len(query) != batch:
        raise InputError(f"query has a batch of {len(query)}, block_table one of {batch}: use the same")
    call = Sequences(
        query=query,
        key=key_pages.transpose(1, 2),
        value=value_pages.transpose(1, 2),
        q_len=q_len,
        k_len=k_len,
        key_lengths=key_lengths,
        cu_seqlens_q=cu_seqlens_q,
        block_table=block_table.contiguous(),
        right=0 if is_causal else None,
        lower_right=True,
        scale=scale,
        softcap=softcap,
        split_keys=split_keys or (None if INTERPRETED and k_len <= SPLIT_KEYS else SPLIT_KEYS),
        tile=tile,
    )
    return forward_pass(call)


def check_pages(query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, packed: bool) -> None:
    """Raise InputError unless query and pages fit each other. Rule: `paged.page-size`."""
    shapes = f"query {tuple(query.shape)}, key_pages {tuple(key_pages.shape)}, value_pages {tuple(value_pages.shape)}"
    if query.ndim != (3 if packed else 4) or not key_pages.ndim == value_pages.ndim == 4:
        right = "(total_q, heads, dim)" if packed else "(batch, heads, length, dim)"
        raise InputError(f"{shapes}: use query {right} and pages (num_blocks, page_size, heads, dim)")
    if key_pages.shape[1] == 0:
        raise InputError(f"{shapes}: use a page_size of 1 or more")
    heads_and_dim = (query.shape[1], query.shape[-1])
    check_heads(shapes, (query, key_pages, value_pages), heads_and_dim, key_pages.shape, value_pages.shape)


def check_table(key_pages: torch.Tensor, block_table: torch.Tensor, key_lengths: torch.Tensor) -> tuple[int, int]:
    """Return batch and longest length. Raises InputError. Rules: `paged.table-range`, `paged.length-range`."""
    if block_table.ndim != 2 or block_table.dtype not in (torch.int32, torch.int64):
        given = f"{block_table.dtype} {tuple(block_table.shape)}"
        raise InputError(f"block_table is {given}: use int32 or int64, (batch, max_blocks)")
    num_blocks, page_size = key_pages.shape[:2]
    batch, max_blocks = block_table.shape
    check_key_lengths(key_lengths, [max_blocks * page_size] * batch)
    needed = torch.arange(max_blocks, device=block_table.device) * page_size < key_lengths[:, None]
    if (needed & ((block_table < 0) | (block_table >= num_blocks))).any():
        raise InputError(f"block_table names a page that is needed and not there: use 0 to {num_blocks - 1}")
    return batch, int(key_lengths.max()) if batch else 0
