"""Mistakes about what is read and written: heads, batch elements, tails of tiles, layouts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn.functional import pad

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import DIM_MULTIPLES, TILES, Mistake, any_call, batched, grouped, many_heads
from attnspec.conformance.diagnosis.steps import NoPrediction, Steps
from attnspec.spec.call import Call

Heads = Callable[[torch.Tensor, int], torch.Tensor]


def tiled(x: torch.Tensor, q_heads: int) -> torch.Tensor:
    """Query head i reads key head i modulo their number."""
    return x[:, torch.arange(q_heads) % x.shape[1]]


def first(x: torch.Tensor, q_heads: int) -> torch.Tensor:
    """Every query head reads key head 0."""
    return x[:, :1].expand(-1, q_heads, -1, -1)


def clamped(x: torch.Tensor, q_heads: int) -> torch.Tensor:
    """Query head i reads key head i, the last one beyond."""
    return x[:, torch.arange(q_heads).clamp_max(x.shape[1] - 1)]


def batch_0(call: Call) -> Call:
    """Keys and values of batch element 0 for all."""
    return call.but(key=call.key[:1].expand_as(call.key), value=call.value[:1].expand_as(call.value))


TILED = "query head i reads key head i modulo their number, not i divided by the group"
HEADS = (
    Mistake("heads-tiled", TILED, grouped, Steps(key_heads=tiled, value_heads=tiled)),
    Mistake("heads-tiled", TILED, grouped, Steps(key_heads=tiled), "keys alone"),
    Mistake("heads-tiled", TILED, grouped, Steps(value_heads=tiled), "values alone"),
    Mistake("heads-all-read-0", "every query head reads key head 0", many_heads,
            Steps(key_heads=first, value_heads=first)),
    Mistake("heads-not-grouped", "query head i reads key head i, the last one where there is none", grouped,
            Steps(key_heads=clamped, value_heads=clamped)),
    Mistake("batch-0-keys", "every batch element reads the keys and values of batch element 0", batched,
            Steps(inputs=batch_0)),
)  # fmt: skip


def seeing(sees: Callable[[torch.Tensor], torch.Tensor]) -> Steps:
    """Only keys of some positions take part; sees: (k_len,) positions -> bool."""

    def visible(kept: torch.Tensor | None, triangle: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
        seen = sees(torch.arange(slots.shape[-1]))
        if not bool(seen.any()):
            raise NoPrediction  # nothing at all proves nothing
        return right.visible(kept, triangle, slots & seen)

    return Steps(visible=visible)


def whole_tiles(tile: int) -> Steps:
    """Keys beyond the last whole tile take no part."""
    return seeing(lambda key: key < key.numel() // tile * tile)


def first_tile(tile: int) -> Steps:
    """Keys beyond the first tile take no part."""
    return seeing(lambda key: key < tile)


def as_many_as_queries(kept: torch.Tensor | None, triangle: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
    """Keys beyond the number of queries take no part."""
    return right.visible(kept, triangle, slots & (torch.arange(slots.shape[-1]) < slots.shape[-2]))


def padded(call: Call, tile: int) -> Call:
    """Keys and values, padded with zeros to whole tiles; the mask lets the padding take part."""
    extra = -call.key.shape[2] % tile
    mask = call.attn_mask
    if mask is not None and mask.shape[-1] > 1:
        mask = pad(mask, (0, extra), value=float(mask.dtype == torch.bool))
    return call.but(key=pad(call.key, (0, 0, 0, extra)), value=pad(call.value, (0, 0, 0, extra)), attn_mask=mask)


def padding(tile: int) -> Steps:
    """Padded keys take part, where the triangle lets them."""
    return Steps(inputs=lambda call: padded(call, tile))


def cut(multiple: int) -> Steps:
    """Elements of queries and keys beyond a multiple are not read."""

    def inputs(call: Call) -> Call:
        whole = call.query.shape[-1] // multiple * multiple
        return call.but(query=call.query[..., :whole], key=call.key[..., :whole])

    return Steps(inputs=inputs)


def unwritten(axis: int, tile: int, left: float) -> Steps:
    """Rows (axis -2) or columns (-1) of the output beyond the last whole tile hold what was there."""

    def output(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        found = right.output(weights, value)
        whole = found.shape[axis] // tile * tile
        if whole == 0:
            raise NoPrediction  # nothing at all proves nothing
        found.narrow(axis, whole, found.shape[axis] - whole).fill_(left)
        return found

    return Steps(output=output)


DROPPED = "keys beyond the last whole tile are dropped"
PADDED = "keys padded to a whole tile take part, with score 0 and value 0"
TAILS = (
    Mistake("last-key-dropped", "the last key is dropped", any_call, seeing(lambda key: key < key.numel() - 1)),
    Mistake("first-key-dropped", "the first key is dropped", any_call, seeing(lambda key: key > 0)),
    *(Mistake("tail-dropped", DROPPED, any_call, whole_tiles(tile), f"tiles of {tile}") for tile in TILES),
    *(Mistake("tail-scored-0", PADDED, any_call, padding(tile), f"tiles of {tile}") for tile in TILES),
    *(Mistake("first-tile-alone", "keys beyond the first tile are dropped", any_call, first_tile(tile),
              f"tiles of {tile}") for tile in TILES),
    Mistake("keys-beyond-queries-dropped", "no more keys are read than there are queries", any_call,
            Steps(visible=as_many_as_queries)),
    *(Mistake("head-dim-tail-dropped", "elements of queries and keys beyond a multiple are not read", any_call,
              cut(multiple), f"a multiple of {multiple}") for multiple in DIM_MULTIPLES),
    *(Mistake("value-dim-tail-unwritten", "columns of the output beyond a multiple are not written", any_call,
              unwritten(-1, multiple, left), f"a multiple of {multiple}, left {left:g}")
      for multiple in DIM_MULTIPLES for left in (0.0, math.nan)),
    *(Mistake("row-tail-unwritten", "rows of the output beyond the last whole tile are not written", any_call,
              unwritten(-2, tile, left), f"tiles of {tile}, left {left:g}")
      for tile in TILES for left in (0.0, math.nan)),
)  # fmt: skip

READING = (*HEADS, *TAILS)
