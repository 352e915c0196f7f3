"""Context parallelism: one sequence on several ranks, each with a shard of it (chapter "context-parallel")."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnspec.reference import masks
from attnspec.reference.attention import attention, check_inputs
from attnspec.reference.backward import backward, check_gradients
from attnspec.reference.merge import Part, merge, seen
from attnspec.spec.call import Gradients, Result
from attnspec.spec.errors import InputError

Shards = Sequence[torch.Tensor]
"""The positions in the whole sequence that each rank holds, in its order: int64 (tokens,) each, some perhaps empty."""


def shards(length: int, ranks: int, order: str = "contiguous") -> list[torch.Tensor]:
    """Return which positions each rank holds, as even as can be.

    `contiguous`: rank r has the r-th of `ranks` chunks. `zigzag`: of 2 * ranks chunks it has chunk r and chunk
    2 * ranks - 1 - r, so that causal work is even. `striped`: it has r, r + ranks, r + 2 * ranks, ... Raises InputError
    for less than one rank and for another order. Source: Liu et al. 2023 (Ring Attention), section 3; Dubey et al. 2024
    (Llama 3), section 3.3.2 (two chunks a rank); Brandon et al. 2023 (Striped Attention).
    """
    if ranks < 1 or length < 0:
        raise InputError(f"{length} positions on {ranks} ranks: use 0 or more positions, 1 or more ranks")
    positions = torch.arange(length)
    halves = positions.tensor_split(2 * ranks)
    orders = {
        "contiguous": list(positions.tensor_split(ranks)),
        "zigzag": [torch.cat([halves[r], halves[2 * ranks - 1 - r]]) for r in range(ranks)],
        "striped": [positions[r::ranks] for r in range(ranks)],
    }
    if order not in orders:
        raise InputError(f"order is {order!r}: use one of {', '.join(orders)}")
    return orders[order]


def context_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_shards: Shards,
    key_shards: Shards,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Result:
    """Return attention of a sharded sequence in float64: for each shard of queries, the merge of one part for each
    shard of keys; weights are None.

    query to value and is_causal to enable_gqa: those of `attnspec.reference.attention.attention`, whole; attn_mask:
    bool or None. query_shards, key_shards: positions that each rank holds; every position is in one shard. Returns
    output (batch, q_heads, q_len, value_dim) and lse (batch, q_heads, q_len) in the order of the whole sequence.
    Raises InputError where shapes, dtypes or shards do not fit. Rules: `context-parallel.merge`,
    `context-parallel.positions`, `context-parallel.order`, `context-parallel.cover`. Source: Liu et al. 2023, section
    3.
    """
    visible = whole_visible(
        query, key, value, query_shards, key_shards, attn_mask, is_causal, causal_alignment, enable_gqa
    )
    output = query.new_zeros(*query.shape[:3], value.shape[3], dtype=torch.float64)
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=torch.float64)
    for rows in query_shards:
        parts = [part(query, key, value, rows, columns, visible, scale) for columns in key_shards]
        merged = merge(parts)
        output[:, :, rows] = merged.output  # (batch, q_heads, rows, value_dim)
        lse[:, :, rows] = merged.lse  # (batch, q_heads, rows)
    return Result(output=output, lse=lse)


def context_parallel_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_output: torch.Tensor,
    query_shards: Shards,
    key_shards: Shards,
    *,
    grad_lse: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Gradients:
    """Return the gradients of a loss with respect to query, key and value of a sharded sequence, in float64.

    Arguments as those of `context_parallel_attention`; grad_output: (batch, q_heads, q_len, value_dim); grad_lse:
    (batch, q_heads, q_len), None for 0. Each pair of shards adds the gradients of its part: those of a query are summed
    over the shards of keys, those of a key over the shards of queries. Raises InputError as the forward does. Rule:
    `context-parallel.backward`. Source: Liu et al. 2023, section 3.
    """
    visible = whole_visible(
        query, key, value, query_shards, key_shards, attn_mask, is_causal, causal_alignment, enable_gqa
    )
    check_gradients(query, value, grad_output, grad_lse)
    grads = Gradients(*(torch.zeros(x.shape, dtype=torch.float64) for x in (query, key, value)))
    for rows in query_shards:
        parts = [part(query, key, value, rows, columns, visible, scale) for columns in key_shards]
        grad_lse_rows = None if grad_lse is None else grad_lse[:, :, rows]
        flowing = merge_backward(parts, merge(parts), grad_output[:, :, rows], grad_lse_rows)
        for columns, (grad_part_output, grad_part_lse) in zip(key_shards, flowing, strict=True):
            of_part = backward(
                query[:, :, rows],
                key[:, :, columns],
                value[:, :, columns],
                grad_part_output,
                grad_lse=grad_part_lse,
                attn_mask=visible[:, :, rows][..., columns],
                scale=scale,
                enable_gqa=True,
            )
            grads.query[:, :, rows] += of_part.query
            grads.key[:, :, columns] += of_part.key
            grads.value[:, :, columns] += of_part.value
    return grads


def merge_backward(
    parts: Sequence[Part], merged: Part, grad_output: torch.Tensor, grad_lse: torch.Tensor | None = None
) -> list[Part]:
    """Return the gradients with respect to output and lse of each part of a merge, in float64.

    parts: outputs o_p (..., q_len, value_dim) and lse_p (..., q_len); merged: their merge, o and lse; grad_output:
    (..., q_len, value_dim); grad_lse: (..., q_len), None for 0. With the share w_p = exp(lse_p - lse) of a part,

        do_p = w_p do        dlse_p = w_p (do . (o_p - o) + dlse)

    and 0 for a part that is empty. Rule: `context-parallel.backward`. Source: the derivative of
    `attnspec.reference.merge.merge_two`; Dao et al. 2022, appendix B.2, is the case of one key a part.
    """
    flowing = []
    for one in parts:
        share = torch.exp(one.lse - torch.where(merged.lse == -torch.inf, 0.0, merged.lse))  # (..., q_len)
        pull = (grad_output.double() * (seen(one) - merged.output)).sum(-1)  # (..., q_len)
        if grad_lse is not None:
            pull = pull + grad_lse.double()
        flowing.append(Part(share[..., None] * grad_output.double(), share * pull))
    return flowing


def part(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    visible: torch.Tensor,
    scale: float | None,
) -> Part:
    """Return attention of the queries at `rows` over the keys at `columns`, as far as `visible` lets them. Rule:
    `context-parallel.positions`."""
    result = attention(
        query[:, :, rows],
        key[:, :, columns],
        value[:, :, columns],
        attn_mask=visible[:, :, rows][..., columns],
        scale=scale,
        enable_gqa=True,
    )
    assert result.lse is not None  # the reference always gives it
    return Part(result.output, result.lse)


def whole_visible(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_shards: Shards,
    key_shards: Shards,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    causal_alignment: str,
    enable_gqa: bool,
) -> torch.Tensor:
    """Return the visible set of the whole sequence, bool (batch, q_heads, q_len, k_len). Raises InputError where
    tensors or shards do not fit. Rules: `context-parallel.positions`, `context-parallel.cover`."""
    check_inputs(query, key, value, enable_gqa)
    check_shards(query_shards, query.shape[2], "query_shards")
    check_shards(key_shards, key.shape[2], "key_shards")
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        raise InputError(f"attn_mask is {attn_mask.dtype}: use torch.bool or None")
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return masks.visible(shape, attn_mask, is_causal, causal_alignment)


def check_shards(held: Shards, length: int, name: str) -> None:
    """Raise InputError unless every position below `length` is in exactly one shard. Rule: `context-parallel.cover`."""
    if not held:
        raise InputError(f"{name} is empty: use one shard or more")
    together = torch.cat(list(held)).tolist()
    counts = [0] * length
    for position in together:
        if not 0 <= position < length:
            raise InputError(f"{name} holds position {position}: use 0 to {length - 1}")
        counts[position] += 1
    for position, count in enumerate(counts):
        if count != 1:
            raise InputError(f"{name} holds position {position} {count} times: use each once")
