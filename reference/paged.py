"""Paged keys and values: a cache in pages that a table puts in order, forward and backward (chapter "paged")."""

from __future__ import annotations

import torch

from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.reference.packed import packed_attention, packed_backward
from attnspec.spec.call import Gradients, Result
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
    check_pools(key_pages, value_pages)
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
    check_pools(key_pages, value_pages)
    return packed_attention(
        query,
        end_to_end(key_pages, block_table, key_lengths),
        end_to_end(value_pages, block_table, key_lengths),
        cu_seqlens_q,
        boundaries(key_lengths),
        is_causal=is_causal,
        causal_alignment="lower_right",
        scale=scale,
    )


def paged_backward(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    grad_output: torch.Tensor,
    block_table: torch.Tensor,
    key_lengths: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Gradients:
    """Return the gradients of a loss with respect to query, key_pages and value_pages, in float64.

    query to key_lengths and is_causal, scale are those of `paged_attention`. grad_output: (batch, q_heads, q_len,
    value_dim); grad_lse: (batch, q_heads, q_len), None for 0. Slots that no sequence reads have gradient 0. Raises
    InputError as `paged_attention` does, and where the gradients that come in have other shapes. Rule:
    `paged.backward`. Source: chapter "paged", the sum over the readers of a slot.
    """
    check_pools(key_pages, value_pages)
    of_keys = backward(
        query,
        contiguous(key_pages, block_table, key_lengths),
        contiguous(value_pages, block_table, key_lengths),
        grad_output,
        grad_lse=grad_lse,
        is_causal=is_causal,
        causal_alignment="lower_right",
        scale=scale,
        enable_gqa=True,
        key_lengths=key_lengths,
    )
    lengths = key_lengths.tolist()
    keys, values = (
        [sequence[:, :n].transpose(0, 1) for sequence, n in zip(grads, lengths, strict=True)]  # (length, kv_heads, dim)
        for grads in (of_keys.key, of_keys.value)
    )
    return Gradients(
        of_keys.query, into_pages(keys, key_pages, block_table), into_pages(values, value_pages, block_table)
    )


def packed_paged_backward(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    grad_output: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    block_table: torch.Tensor,
    key_lengths: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Gradients:
    """Return the gradients of a loss with respect to packed queries, key_pages and value_pages, in float64.

    query to key_lengths and is_causal, scale are those of `packed_paged_attention`. grad_output: (total_q, q_heads,
    value_dim); grad_lse: (q_heads, total_q), None for 0. Raises InputError as `packed_paged_attention` does, and where
    the gradients that come in have other shapes. Rules: `paged.backward`, `paged.packed-queries`.
    """
    check_pools(key_pages, value_pages)
    of_keys = packed_backward(
        query,
        end_to_end(key_pages, block_table, key_lengths),
        end_to_end(value_pages, block_table, key_lengths),
        grad_output,
        cu_seqlens_q,
        boundaries(key_lengths),
        grad_lse=grad_lse,
        is_causal=is_causal,
        causal_alignment="lower_right",
        scale=scale,
    )
    lengths = key_lengths.tolist()
    keys, values = (list(torch.split(grads, lengths)) for grads in (of_keys.key, of_keys.value))
    return Gradients(
        of_keys.query, into_pages(keys, key_pages, block_table), into_pages(values, value_pages, block_table)
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
    return [
        pages[places(row, length, pages.shape[1])]  # (length, kv_heads, dim)
        for row, length in zip(block_table, key_lengths.tolist(), strict=True)
    ]


def into_pages(sequences: list[torch.Tensor], pages: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
    """Return what the keys of all sequences add to the slots that they lie in, float64 of the shape of `pages`.

    sequences: (key_lengths[b], kv_heads, dim) for each, as `in_order` gives them, of which this is the adjoint:

        slot (block, s) = sum over b and j with block_table[b, floor(j / page_size)] = block, j mod page_size = s

    pages: (num_blocks, page_size, kv_heads, dim). Slots that no sequence reads are 0. Rule: `paged.backward`.
    """
    total = torch.zeros(pages.shape, dtype=torch.float64)
    for sequence, row in zip(sequences, block_table, strict=True):
        total.index_put_(places(row, len(sequence), pages.shape[1]), sequence.double(), accumulate=True)
    return total


def places(row: torch.Tensor, length: int, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the block and the slot of each key of a sequence, (length,) int64. row: its row of the table."""
    j = torch.arange(length)
    return row[j // page_size].long(), j % page_size


def end_to_end(pages: torch.Tensor, block_table: torch.Tensor, key_lengths: torch.Tensor) -> torch.Tensor:
    """Return the keys or values of all sequences laid end to end, (total_k, kv_heads, dim). Arguments and errors are
    those of `in_order`."""
    return torch.cat([pages.new_zeros(0, *pages.shape[2:]), *in_order(pages, block_table, key_lengths)])


def boundaries(key_lengths: torch.Tensor) -> torch.Tensor:
    """Return where sequences of these lengths begin and end when they are laid end to end, int64 (batch + 1,)."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), key_lengths.long().cumsum(0)])


def check_pools(key_pages: torch.Tensor, value_pages: torch.Tensor) -> None:
    """Raise InputError unless keys and values lie in pages of the same number, size and heads."""
    if key_pages.shape[:3] != value_pages.shape[:3]:
        shapes = f"key_pages {tuple(key_pages.shape)} and value_pages {tuple(value_pages.shape)}"
        raise InputError(f"{shapes} differ in blocks, page size or heads")


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
