"""The forward kernel: for each tile of rows, one pass over the tiles of keys with an online softmax.

Read it beside "Forward" of chapter "FlashAttention": `start`, `step` and `finish` are its lines. Source: Dao 2023,
algorithm 1; Milakov and Gimelshein 2018, algorithm 3.
"""

import triton
import triton.language as tl

from attnspec.implementations.triton_flash.interpreter import dot, round_to
from attnspec.implementations.triton_flash.tiles import (
    biased,
    capped_scores,
    hidden_left_out,
    key_places,
    load_tile,
    members,
    places,
    program_of,
    rows_of,
    store_tile,
)


@triton.jit
def forward(
    query,
    key,
    value,
    output,
    lse,
    query_strides,
    key_strides,
    value_strides,
    output_strides,
    lse_strides,
    attn_mask,
    mask_strides,
    alibi_slopes,
    slope_strides,
    sinks,
    key_lengths,
    cu_seqlens_q,
    cu_seqlens_k,
    block_table,
    table_stride,
    q_len,
    k_len,
    kv_heads,
    scale,
    softcap,
    left,
    right,
    split_keys,
    PAGE_SIZE: tl.constexpr,
    LOWER_RIGHT: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Write output and lse of one tile of rows of one key head, over one split of the keys.

    Grid: (tiles of rows * batch * kv_heads, splits). Strides are (batch, head, length, dim), with that of a split
    behind: those of the lse are (batch, head, length, split). split_keys, a multiple of KEYS: how many keys a split
    has. What is None is not there.
    """
    tile, batch, kv_head = program_of(tl.cdiv(q_len * GROUP, ROWS), kv_heads)
    first_row = tile * ROWS
    q_start, q_len, k_start, k_len = members(batch, q_len, k_len, cu_seqlens_q, cu_seqlens_k, key_lengths)
    if first_row >= q_len * GROUP:
        return
    position, head = rows_of(first_row, kv_head, GROUP, ROWS)
    row_there = position < q_len
    offset = k_len - q_len if LOWER_RIGHT else 0
    diagonal = position + offset
    query_place = places(batch, head, q_start + position, query_strides)
    query_tile = load_tile(query, query_place, row_there, query_strides[3], HEAD_DIM, HEAD_WIDTH, False)

    split = tl.program_id(1)
    begin, end = 0, k_len
    if split_keys is not None:
        begin, end = split * split_keys, tl.minimum(k_len, (split + 1) * split_keys)
    last_row = tl.minimum(first_row + ROWS, q_len * GROUP) - 1
    edges = visible_tiles(begin, end, first_row // GROUP + offset, last_row // GROUP + offset, left, right, KEYS)
    top, total, mixed = start(sinks, head, row_there, split == 0, ROWS, VALUE_WIDTH)
    for phase in tl.static_range(3):  # keys that the left edge crosses, keys that all rows see, keys up to the end
        if phase > 0 or left is not None:
            for first_key in range(edges[phase], edges[phase + 1], KEYS):
                keys = first_key + tl.arange(0, KEYS)
                there = keys < k_len
                key_place = key_places(
                    batch, kv_head, keys, there, k_start, block_table, table_stride, key_strides, PAGE_SIZE
                )
                key_tile = load_tile(key, key_place, there, key_strides[3], HEAD_DIM, HEAD_WIDTH, phase == 1)
                scores = capped_scores(query_tile, key_tile, scale, softcap)
                scores = biased(scores, diagonal, keys, head, row_there, batch, position, attn_mask, mask_strides,
                                alibi_slopes, slope_strides, k_len)  # fmt: skip
                if phase != 1:
                    scores = hidden_left_out(scores, diagonal, keys, k_len, left, right)
                value_place = key_places(
                    batch, kv_head, keys, there, k_start, block_table, table_stride, value_strides, PAGE_SIZE
                )
                value_tile = load_tile(value, value_place, there, value_strides[3], VALUE_DIM, VALUE_WIDTH, phase == 1)
                top, total, mixed = step(top, total, mixed, scores, value_tile)
    rows, row_lse = finish(top, total, mixed)
    output_place = places(batch, head, q_start + position, output_strides) + split.to(tl.int64) * output_strides[4]
    rows = round_to(rows, output.dtype.element_ty)
    store_tile(output, output_place, row_there, output_strides[3], rows, VALUE_DIM, VALUE_WIDTH)
    lse_place = places(batch, head, q_start + position, lse_strides) + split.to(tl.int64) * lse_strides[3]
    tl.store(lse + lse_place, row_lse, mask=row_there)


@triton.jit
def visible_tiles(begin, end, first_diagonal, last_diagonal, left, right, KEYS: tl.constexpr):
    """Return where the keys of a tile of rows begin, from where to where every row sees all, and where they end.

    first_diagonal, last_diagonal: the keys on the diagonal of the first and the last row. All but the end are
    multiples of KEYS. Tiles that window or causal triangle hide whole lie outside.
    """
    whole_from, whole_to = begin, end
    if right is not None:
        whole_to = tl.minimum(end, first_diagonal + right + 1)
        end = tl.minimum(end, last_diagonal + right + 1)
    if left is not None:
        begin = tl.maximum(begin, first_diagonal - left) // KEYS * KEYS
        whole_from = tl.cdiv(tl.maximum(begin, last_diagonal - left), KEYS) * KEYS
        whole_from = tl.maximum(begin, tl.minimum(whole_from, tl.cdiv(tl.maximum(end, 0), KEYS) * KEYS))
    return begin, whole_from, tl.maximum(whole_from, tl.maximum(whole_to, 0) // KEYS * KEYS), end


@triton.jit
def start(sinks, head, row_there, first_split, ROWS: tl.constexpr, VALUE_WIDTH: tl.constexpr):
    """Return m = -inf, l = 0, O = 0 for each row; with a sink z, m = z, l = 1, as after a key of score z and value 0.

    A sink belongs to the first split.
    """
    top = tl.full([ROWS], -float("inf"), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head, mask=row_there, other=-float("inf")).to(tl.float32)
        top = tl.where(first_split, sink, top)
    total = (top > -float("inf")).to(tl.float32)
    return top, total, tl.zeros([ROWS, VALUE_WIDTH], tl.float32)


@triton.jit
def step(top, total, mixed, scores, value_tile):
    """Return m', l' and O' after one more tile of keys; the weights are rounded once, to the dtype of the values."""
    higher = tl.maximum(top, tl.max(scores, 1))  # m'
    shift = tl.where(higher == -float("inf"), 0.0, higher)  # a row that has seen no key has no maximum
    weights = tl.exp(scores - shift[:, None])
    rescale = tl.exp(top - shift)  # exp(m - m')
    total = rescale * total + tl.sum(weights, 1)
    mixed = rescale[:, None] * mixed + dot(round_to(weights, value_tile.dtype), value_tile)
    return higher, total, mixed


@triton.jit
def finish(top, total, mixed):
    """Return O / l and m + log l; 0 and -inf for a row without keys."""
    divisor = tl.where(total == 0, 1.0, total)
    return mixed / divisor[:, None], top + tl.log(divisor)
