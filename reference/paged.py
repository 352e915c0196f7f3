"""Paged keys and values: a cache in pages that a table puts in order (chapter "paged")."""

from __future__ import annotations

import torch

from attnspec.reference.attention import attention
from attnspec.reference.packed import packed_attention
from attnspec.spec.call import Result
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
) -> Result:
    """Return attention over the keys that the pages hold, in float64; weights are None.

    query: (batch, q_heads, q_len, head_dim); key_pages: (num_blocks, page_size, kv_heads, head_dim); value_pages:
    (num_blocks, page_size, kv_heads, value_dim), of one floating dtype; block_table: (batch, max_blocks) and
    key_lengths: (batch,), int32 or int64. The causal diagonal is at the lower right of each sequence, as in
    `attnspec.reference.kv_cache.attend`. Returns output (batch, q_heads, q_len, value_dim) and lse (batch, q_heads,
    q_len). Raises InputError as `check_pages` does, and where the query does not fit. Rules: `paged.order`,
    `paged.absent`, `paged.page-size`, `paged.causal`. Source: flash-attention, `flash_attn_with_kvcache`; Kwon et al.
    2023, section 4.
    """
    if key_pages.shape[:3] != value_pages.shape[:3]:
        shapes = f"key_pages {tuple(key_pages.shape)} and value_pages {tuple(value_pages.shape)}"
        raise InputError(f"{shapes} differ in blocks, page size or heads")
    result = attention(
        query,
        contiguous(key_pages, block_table, key_lengths),
        contiguous(value_pages, block_table, key_lengths),
        is_causal=is_causal,
        causal_alignment="lower_right",
        scale=scale,
        enable_gqa=True,
        key_lengths=key_lengths,
    )
    return Result(output=result.output, lse=result.lse)


def packed_paged_attention(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_table: torch.Tensor,
    key_lengths: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Result:
    """Return attention of packed queries over the keys that the pages hold, in float64; weights are None.

    query: (total_q, q_heads, head_dim) and cu_seqlens_q: (batch + 1,), as in
    `attnspec.reference.packed.packed_attention`; key_pages to key_lengths: those of `paged_attention`. Prefill and
    decode steps may stand in one batch. Returns output (total_q, q_heads, value_dim) and lse (q_heads, total_q). Raises
    InputError as the two do. Rule: `paged.packed-queries`. Source: vLLM; FlashInfer,
    `BatchPrefillWithPagedKVCacheWrapper`.
    """
    keys, values = (in_order(pages, block_table, key_lengths) for pages in (key_pages, value_pages))
    none = torch.zeros(1, dtype=torch.int64)
    return packed_attention(
        query,
        torch.cat([key_pages.new_zeros(0, *key_pages.shape[2:]), *keys]),
        torch.cat([value_pages.new_zeros(0, *value_pages.shape[2:]), *values]),
        cu_seqlens_q,
        torch.cat([none, key_lengths.long().cumsum(0)]),
        is_causal=is_causal,
        causal_alignment="lower_right",
        scale=scale,
    )


def contiguous(pages: torch.Tensor, block_table: torch.Tensor, key_lengths: torch.Tensor) -> torch.Tensor:
    """Return the keys or values of each sequence in order, (batch, kv_heads, longest, dim), of the dtype of the pages.

    Arguments and errors are those of `in_order`; longest is the largest length, and 0 stands where a sequence has no
    key. Rules: `paged.order`, `paged.absent`.
    """
    sequences = in_order(pages, block_table, key_lengths)
    longest = max(key_lengths.tolist(), default=0)
    keys = pages.new_zeros(len(sequences), longest, *pages.shape[2:])
    for b, sequence in enumerate(sequences):
        keys[b, : len(sequence)] = sequence
    return keys.transpose(1, 2)


def in_order(pages: torch.Tensor, block_table: torch.Tensor, key_lengths: torch.Tensor) -> list[torch.Tensor]:
    """Return the keys or values of each sequence, (key_lengths[b], kv_heads, dim), of the dtype of the pages.

    pages: (num_blocks, page_size, kv_heads, dim), of any dtype; block_table: (batch, max_blocks); key_lengths:
    (batch,). Key j of sequence b is

        pages[block_table[b, floor(j / page_size)], j mod page_size]

    Raises InputError as `check_pages` does. Rules: `paged.order`, `paged.absent`. Source: Kwon et al. 2023, section
    4.3.
    """
    check_pages(pages, block_table, key_lengths)
    page_size = pages.shape[1]
    sequences = []
    for b, length in enumerate(key_lengths.tolist()):
        j = torch.arange(length)
        blocks = block_table[b, j // page_size].long()  # (length,)
        sequences.append(pages[blocks, j % page_size])  # (length, kv_heads, dim)
    return sequences


def check_pages(pages: torch.Tensor, block_table: torch.Tensor, key_lengths: torch.Tensor) -> None:
    """Raise InputError unless every key that a length promises lies in a page that is there.

    Entries of the table behind those that a sequence needs are not looked at. Rules: `paged.page-size`,
    `paged.table-range`, `paged.length-range`.
    """
    if pages.ndim != 4:
        raise InputError(f"pages have {pages.ndim} dimensions: use (num_blocks, page_size, kv_heads, dim)")
    num_blocks, page_size = pages.shape[:2]
    if page_size == 0:
        raise InputError("page_size is 0: use 1 or more")
    for name, tensor in (("block_table", block_table), ("key_lengths", key_lengths)):
        if tensor.dtype not in (torch.int32, torch.int64):
            raise InputError(f"{name} is {tensor.dtype}: use torch.int32 or torch.int64")
    if block_table.ndim != 2 or key_lengths.shape != block_table.shape[:1]:
        shapes = f"block_table {tuple(block_table.shape)} and key_lengths {tuple(key_lengths.shape)}"
        raise InputError(f"{shapes}: use (batch, max_blocks) and (batch,)")
    capacity = block_table.shape[1] * page_size
    for b, length in enumerate(key_lengths.tolist()):
        if not 0 <= length <= capacity:
            raise InputError(f"key_lengths has {length} for batch {b}: use 0 to {capacity}, the slots of its pages")
        for place, block in enumerate(block_table[b, : -(-length // page_size)].tolist()):
            if not 0 <= block < num_blocks:
                raise InputError(f"block_table has {block} at ({b}, {place}): use 0 to {num_blocks - 1}")
