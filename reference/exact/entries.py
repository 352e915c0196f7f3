"""Which entry of an additive term of the scores each slot reads: of a mask, of sinks, of slopes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Entries:
    """What the slots (batch, q_heads, q_len, keys) read of an additive term.

    shape: of the term. of_slot: the entry that a slot reads, counted in row-major order, -1 for none. factor: what it
    is multiplied by before it is added, integers that broadcast to the slots; so the gradient of an entry is the sum of
    factor times the gradient of the score over the slots that read it.
    """

    shape: tuple[int, ...]
    of_slot: NDArray[np.intp]
    factor: NDArray[np.int64]


def of_mask(shape: tuple[int, ...], slots: tuple[int, ...], seen: tuple[int, ...]) -> Entries:
    """Return the entries of a mask of this shape, which broadcasts to `slots`; the keys of `seen` beyond read none.
    Rules: `backward.bias`, `backward.broadcast`."""
    entries = np.arange(math.prod(shape)).reshape(shape)
    of_slot = np.full(seen, -1, dtype=np.intp)
    of_slot[..., : slots[3]] = np.broadcast_to(entries, slots)
    return Entries(shape, of_slot, _ones(seen))


def of_sinks(seen: tuple[int, ...]) -> Entries:
    """Return the entries of the sinks, (q_heads,): the last key of every row of a head reads the head's. Rule:
    `sinks.gradient`."""
    of_slot = np.full(seen, -1, dtype=np.intp)
    of_slot[..., -1] = np.arange(seen[1])[:, None]
    return Entries((seen[1],), of_slot, _ones(seen))


def of_slopes(shape: tuple[int, ...], distance: NDArray[np.int64], seen: tuple[int, ...]) -> Entries:
    """Return the entries of slopes, (q_heads,) or (batch, q_heads): every slot of a head reads the head's, times minus
    its distance, (batch, q_len, keys). Rule: `alibi.gradient`."""
    entries = np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), seen[:2])
    of_slot = np.broadcast_to(entries[:, :, None, None], seen)
    return Entries(shape, of_slot, np.broadcast_to(-distance[:, None], seen))


def _ones(seen: tuple[int, ...]) -> NDArray[np.int64]:
    return np.broadcast_to(np.ones((), dtype=np.int64), seen)
