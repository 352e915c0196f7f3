"""The backward kernels: the weights are computed again from the lse, P = exp(S - lse), tile by tile.

Read them beside "Backward" of chapter "FlashAttention". One kernel takes delta, one runs over the rows for each tile of
keys (dK, dV), one over the keys for each tile of rows (dQ, and dS where a mask asks for its gradient); so no sum is
shared between programs, and the bits do not depend on their order. Source: Dao 2023, algorithm 2; Dao et al. 2022,
appendix B.2.
"""

import triton
import triton.language as tl

from attnspec.implementations.triton_flash.forward import visible_tiles
from attnspec.implementations.triton_flash.interpreter import dot, round_to
from attnspec.implementations.triton_flash.tiles import (
    biased,
    capped_scores,
    hidden_left_out,
    load_tile,
    members,
    places,
    program_of,
    rows_of,
    store_tile,
)


@triton.jit
def row_delta(
    output,
    grad_output,
    grad_lse,
    delta,
    output_strides,
    grad_output_strides,
    grad_lse_strides,
    delta_strides,
    heads,
    q_len,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write delta = rowsum(dO o O) - dlse of one tile of rows of one query head.

    Grid: (tiles of rows * batch * heads,).
    """
    tile, batch, head = program_of(tl.cdiv(q_len, ROWS), heads)
    position = tile * ROWS + tl.arange(0, ROWS)
    there = position < q_len
    place = places(batch, head, position, output_strides)
    output_tile = load_tile(output, place, there, output_strides[3], VALUE_DIM, VALUE_WIDTH, False)
    place = places(batch, head, position, grad_output_strides)
    grad_tile = load_tile(grad_output, place, there, grad_output_strides[3], VALUE_DIM, VALUE_WIDTH, False)
    found = tl.sum(output_tile.to(tl.float32) * grad_tile.to(tl.float32), 1)
    if grad_lse is not None:
        found -= tl.load(grad_lse + places(batch, head, position, grad_lse_strides), mask=there, other=0.0)
    tl.store(delta + places(batch, head, position, delta_strides), found, mask=there)


@triton.jit
def key_gradients(
    query,
    key,
    value,
    grad_output,
    lse,
    delta,
    grad_key,
    grad_value,
    query_strides,
    key_strides,
    value_strides,
    grad_output_strides,
    lse_strides,
    grad_key_strides,
    grad_value_strides,
    attn_mask,
    mask_strides,
    alibi_slopes,
    slope_strides,
    key_lengths,
    cu_seqlens_q,
    cu_seqlens_k,
    q_len,
    k_len,
    kv_heads,
    scale,
    softcap,
    left,
    right,
    LOWER_RIGHT: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Write dV = P^T dO and dK = scale dS^T Q of one tile of keys of one key head, over all rows that see one of them.

    Grid: (tiles of keys * batch * kv_heads,). Keys that do not exist are not written.
    """
    tile, batch, kv_head = program_of(tl.cdiv(k_len, KEYS), kv_heads)
    first_key = tile * KEYS
    q_start, q_len, k_start, k_len = members(batch, q_len, k_len, cu_seqlens_q, cu_seqlens_k, key_lengths)
    if first_key >= k_len:
        return
    keys = first_key + tl.arange(0, KEYS)
    there = keys < k_len
    key_place = places(batch, kv_head, k_start + keys, key_strides)
    value_place = places(batch, kv_head, k_start + keys, value_strides)
    key_tile = load_tile(key, key_place, there, key_strides[3], HEAD_DIM, HEAD_WIDTH, False)
    value_tile = load_tile(value, value_place, there, value_strides[3], VALUE_DIM, VALUE_WIDTH, False)
    offset = k_len - q_len if LOWER_RIGHT else 0
    first, end = seeing_rows(first_key, q_len, offset, left, right, KEYS)
    grad_key_tile = tl.zeros([KEYS, HEAD_WIDTH], tl.float32)
    grad_value_tile = tl.zeros([KEYS, VALUE_WIDTH], tl.float32)
    for first_row in range(first * GROUP // ROWS * ROWS, end * GROUP, ROWS):
        position, head = rows_of(first_row, kv_head, GROUP, ROWS)
        row_there = position < q_len
        query_place = places(batch, head, q_start + position, query_strides)
        query_tile = load_tile(query, query_place, row_there, query_strides[3], HEAD_DIM, HEAD_WIDTH, False)
        grad_place = places(batch, head, q_start + position, grad_output_strides)
        grad_tile = load_tile(grad_output, grad_place, row_there, grad_output_strides[3], VALUE_DIM, VALUE_WIDTH, False)
        capped = capped_scores(query_tile, key_tile, scale, softcap)
        scores = biased(capped, position + offset, keys, head, row_there, batch, position, attn_mask, mask_strides,
                        alibi_slopes, slope_strides, k_len)  # fmt: skip
        scores = hidden_left_out(scores, position + offset, keys, k_len, left, right)
        row_place = places(batch, head, q_start + position, lse_strides)
        weights = recomputed(scores, lse, row_place, row_there)
        grad_scores = score_gradients(weights, grad_tile, value_tile, delta, row_place, row_there)
        grad_scaled = below_cap(grad_scores, capped, softcap)
        grad_value_tile += dot(tl.trans(round_to(weights, grad_tile.dtype)), grad_tile)
        grad_key_tile += dot(tl.trans(round_to(grad_scaled, query_tile.dtype)), query_tile)
    place = places(batch, kv_head, k_start + keys, grad_key_strides)
    rounded = round_to(grad_key_tile * scale, grad_key.dtype.element_ty)
    store_tile(grad_key, place, there, grad_key_strides[3], rounded, HEAD_DIM, HEAD_WIDTH)
    place = places(batch, kv_head, k_start + keys, grad_value_strides)
    rounded = round_to(grad_value_tile, grad_value.dtype.element_ty)
    store_tile(grad_value, place, there, grad_value_strides[3], rounded, VALUE_DIM, VALUE_WIDTH)


@triton.jit
def query_gradient(
    query,
    key,
    value,
    grad_output,
    lse,
    delta,
    grad_query,
    grad_mask,
    query_strides,
    key_strides,
    value_strides,
    grad_output_strides,
    lse_strides,
    grad_query_strides,
    grad_mask_strides,
    attn_mask,
    mask_strides,
    alibi_slopes,
    slope_strides,
    key_lengths,
    cu_seqlens_q,
    cu_seqlens_k,
    q_len,
    k_len,
    kv_heads,
    scale,
    softcap,
    left,
    right,
    LOWER_RIGHT: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Write dQ = scale dS K of one tile of rows of one key head, and dS itself where grad_mask is not None.

    Grid: (tiles of rows * batch * kv_heads,). dS of tiles that window or causal triangle hide whole is not written.
    """
    tile, batch, kv_head = program_of(tl.cdiv(q_len * GROUP, ROWS), kv_heads)
    first_row = tile * ROWS
    q_start, q_len, k_start, k_len = members(batch, q_len, k_len, cu_seqlens_q, cu_seqlens_k, key_lengths)
    if first_row >= q_len * GROUP:
        return
    position, head = rows_of(first_row, kv_head, GROUP, ROWS)
    row_there = position < q_len
    offset = k_len - q_len if LOWER_RIGHT else 0
    query_place = places(batch, head, q_start + position, query_strides)
    query_tile = load_tile(query, query_place, row_there, query_strides[3], HEAD_DIM, HEAD_WIDTH, False)
    grad_place = places(batch, head, q_start + position, grad_output_strides)
    grad_tile = load_tile(grad_output, grad_place, row_there, grad_output_strides[3], VALUE_DIM, VALUE_WIDTH, False)
    row_place = places(batch, head, q_start + position, lse_strides)
    last_row = tl.minimum(first_row + ROWS, q_len * GROUP) - 1
    edges = visible_tiles(0, k_len, first_row // GROUP + offset, last_row // GROUP + offset, left, right, KEYS)
    grad_query_tile = tl.zeros([ROWS, HEAD_WIDTH], tl.float32)
    for first_key in range(edges[0], edges[3], KEYS):
        keys = first_key + tl.arange(0, KEYS)
        there = keys < k_len
        key_place = places(batch, kv_head, k_start + keys, key_strides)
        value_place = places(batch, kv_head, k_start + keys, value_strides)
        key_tile = load_tile(key, key_place, there, key_strides[3], HEAD_DIM, HEAD_WIDTH, False)
        value_tile = load_tile(value, value_place, there, value_strides[3], VALUE_DIM, VALUE_WIDTH, False)
        capped = capped_scores(query_tile, key_tile, scale, softcap)
        scores = biased(capped, position + offset, keys, head, row_there, batch, position, attn_mask, mask_strides,
                        alibi_slopes, slope_strides, k_len)  # fmt: skip
        scores = hidden_left_out(scores, position + offset, keys, k_len, left, right)
        weights = recomputed(scores, lse, row_place, row_there)
        grad_scores = score_gradients(weights, grad_tile, value_tile, delta, row_place, row_there)
        if grad_mask is not None:
            place = places(batch, head, position, grad_mask_strides)[:, None] + keys[None, :] * grad_mask_strides[3]
            tl.store(grad_mask + place, grad_scores, mask=row_there[:, None] & there[None, :])
        grad_scaled = below_cap(grad_scores, capped, softcap)
        grad_query_tile += dot(round_to(grad_scaled, key_tile.dtype), key_tile)
    place = places(batch, head, q_start + position, grad_query_strides)
    rounded = round_to(grad_query_tile * scale, grad_query.dtype.element_ty)
    store_tile(grad_query, place, row_there, grad_query_strides[3], rounded, HEAD_DIM, HEAD_WIDTH)


@triton.jit
def seeing_rows(first_key, q_len, offset, left, right, KEYS: tl.constexpr):
    """Return the first position that sees a key of a tile, and the position behind the last one."""
    first, end = 0, q_len
    if right is not None:
        first = tl.maximum(first_key - offset - right, 0)
    if left is not None:
        end = tl.minimum(q_len, first_key + KEYS - offset + left)
    return first, end


@triton.jit
def recomputed(scores, lse, row_place, row_there):
    """Return P = exp(S - lse); 0 in hidden slots, in rows without keys, whose lse is -inf, and where no row is."""
    row_lse = tl.load(lse + row_place, mask=row_there, other=-float("inf"))
    row_lse = tl.where(row_lse == -float("inf"), float("inf"), row_lse)
    return tl.exp(scores - row_lse[:, None])


@triton.jit
def score_gradients(weights, grad_tile, value_tile, delta, row_place, row_there):
    """Return dS = P o (dP - delta) with dP = dO V^T."""
    row = tl.load(delta + row_place, mask=row_there, other=0.0)
    return weights * (dot(grad_tile, tl.trans(value_tile)) - row[:, None])


@triton.jit
def below_cap(grad_scores, capped, softcap):
    """Return the gradient of the scaled scores from that of c tanh(s / c): times 1 - tanh^2."""
    if softcap is not None:
        grad_scores *= 1 - (capped / softcap) * (capped / softcap)
    return grad_scores
