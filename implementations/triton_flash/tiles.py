"""The steps that forward and backward pass share: where the rows and keys of a tile lie, and their scores.

The rows of a tile are those of all query heads that read one key head, GROUP of them: row r of a sequence is position
floor(r / GROUP) of query head kv_head * GROUP + r mod GROUP. So keys are read once for the group and never expanded.
Strides are tuples (batch, head, length, dim), in elements.
"""

import triton
import triton.language as tl

from attnspec.implementations.triton_flash.interpreter import dot


@triton.jit
def members(batch, q_len, k_len, cu_seqlens_q, cu_seqlens_k, key_lengths):
    """Return where the tokens of a sequence begin and how many there are: q_start, q_len, k_start, k_len."""
    q_start, k_start = 0, 0
    if cu_seqlens_q is not None:
        q_start = tl.load(cu_seqlens_q + batch)
        q_len = tl.load(cu_seqlens_q + batch + 1) - q_start
    if cu_seqlens_k is not None:
        k_start = tl.load(cu_seqlens_k + batch)
        k_len = tl.load(cu_seqlens_k + batch + 1) - k_start
    if key_lengths is not None:
        k_len = tl.load(key_lengths + batch)
    return q_start, q_len, k_start, k_len


@triton.jit
def program_of(tiles, heads):
    """Return which tile, batch element and head a program has, tiles first; batch and head in 64 bits."""
    program = tl.program_id(0)
    return program % tiles, (program // tiles // heads).to(tl.int64), (program // tiles % heads).to(tl.int64)


@triton.jit
def rows_of(start, kv_head, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Return the position and the query head of each row of a tile, (ROWS,)."""
    rows = start + tl.arange(0, ROWS)
    return rows // GROUP, kv_head * GROUP + rows % GROUP


@triton.jit
def places(batch, head, position, strides):
    """Return how far the rows lie from the first element of a tensor. It, batch and head are numbers of 64 bits, since
    strides may pass 2^31 elements."""
    return batch * strides[0] + head * strides[1] + position.to(tl.int64) * strides[2]


@triton.jit
def key_places(batch, head, keys, there, k_start, block_table, table_stride, strides, PAGE_SIZE: tl.constexpr):
    """Return how far the keys lie from the first element: one after the other, or where the block table says."""
    if block_table is None:
        place = places(batch, head, k_start + keys, strides)
    else:
        page = tl.load(block_table + batch * table_stride + keys // PAGE_SIZE, mask=there, other=0)
        place = places(page.to(tl.int64), head, keys % PAGE_SIZE, strides)
    return place


@triton.jit
def load_tile(base, place, there, dim_stride, DIM: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """Return a tile (rows, WIDTH) of a tensor whose last dimension is DIM; 0 where there is nothing."""
    dims = tl.arange(0, WIDTH)
    pointers = base + place[:, None] + dims[None, :] * dim_stride
    if WHOLE and DIM == WIDTH:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=there[:, None] & (dims < DIM)[None, :], other=0.0)
    return tile


@triton.jit
def store_tile(base, place, there, dim_stride, tile, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Write a tile (rows, WIDTH) to the rows that are there."""
    dims = tl.arange(0, WIDTH)
    pointers = base + place[:, None] + dims[None, :] * dim_stride
    tl.store(pointers, tile, mask=there[:, None] & (dims < DIM)[None, :])


@triton.jit
def capped_scores(query_tile, key_tile, scale, softcap):
    """Return c tanh(scale q.k / c), and scale q.k where there is no softcap c."""
    scores = dot(query_tile, tl.trans(key_tile)) * scale
    if softcap is not None:
        scores = softcap * tanh(scores / softcap)
    return scores


@triton.jit
def tanh(x):
    """Return tanh x: its power series where it is small, else (1 - exp(-2x)) / (1 + exp(-2x))."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    fall = tl.exp(-2 * tl.abs(x))
    quotient = (1 - fall) / (1 + fall)
    return tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0, -quotient, quotient))


@triton.jit
def biased(scores, diagonal, keys, head, row_there, batch, position, attn_mask, mask_strides, alibi_slopes,
           slope_strides, k_len):  # fmt: skip
    """Return the scores less slope times distance, plus the bias, -inf where the mask hides the key."""
    if alibi_slopes is not None:
        slopes = tl.load(alibi_slopes + batch * slope_strides[0] + head * slope_strides[1], mask=row_there, other=0.0)
        scores -= slopes[:, None] * tl.abs(diagonal[:, None] - keys[None, :]).to(tl.float32)
    if attn_mask is not None:
        place = places(batch, head, position, mask_strides)[:, None] + keys[None, :].to(tl.int64) * mask_strides[3]
        mask = tl.load(attn_mask + place, mask=row_there[:, None] & (keys < k_len)[None, :], other=0)
        if attn_mask.dtype.element_ty == tl.uint8:
            scores = tl.where(mask != 0, scores, -float("inf"))
        else:
            bias = mask.to(tl.float32)
            scores = tl.where(bias == -float("inf"), bias, scores + bias)
    return scores


@triton.jit
def hidden_left_out(scores, diagonal, keys, k_len, left, right):
    """Return the scores, -inf where the key does not exist or lies outside of the window or the causal triangle."""
    seen = (keys < k_len)[None, :]
    if right is not None:
        seen = seen & (keys[None, :] <= diagonal[:, None] + right)
    if left is not None:
        seen = seen & (keys[None, :] >= diagonal[:, None] - left)
    return tl.where(seen, scores, -float("inf"))
