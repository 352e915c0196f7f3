"""Calls with key lengths, and whole sequences to be decoded or merged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.problems.sizes import CORNERS, DTYPES, LARGEST_TILE
from attnspec.spec.problem import Mask, Problem


def ragged(level: str) -> Iterator[Problem]:
    """Batches in which each element has its own number of keys: causal, grouped, masked, one row, none of the keys."""
    base = Problem(q_len=5, k_len=70, head_dim=64, batch=3, q_heads=2, key_lengths="ragged", seed=1)
    for causal in (None, *CORNERS):
        yield base.but(causal=causal)
        yield base.but(causal=causal, q_len=1, k_len=130)
        yield base.but(causal=causal, key_lengths="zero", q_heads=6, kv_heads=2)
        yield base.but(causal=causal, q_len=70, k_len=33, dtype="bfloat16")
    yield base.but(key_lengths="full")
    for causal in (None, *CORNERS):
        yield base.but(kv_batch=1, q_len=9, key_lengths="short", causal=causal)
    yield base.but(mask=Mask("bool", "bhqk", "random"), dtype="float16")
    yield base.but(mask=Mask("float", "11qk", "random"), key_lengths="zero")
    unsorted = base.but(batch=4, seed=4)
    for causal in (None, *CORNERS):
        yield unsorted.but(causal=causal, k_len=64, key_lengths="zero")  # the longest ends with a tile
    for causal in (None, "lower_right"):
        one_row = unsorted.but(causal=causal, q_len=1, k_len=300, q_heads=6, kv_heads=2)
        yield one_row.but(mask=Mask("bool", "b11k", "random"), scale=0.3, value_dim=96)
    yield unsorted.but(mask=Mask("float", "bhqk", "random"), causal="upper_left")
    yield base.but(k_len=700, head_dim=16)
    if level == "full":
        for k_len, corner in product(range(1, 2 * LARGEST_TILE + 7, 5), (None, *CORNERS)):
            yield base.but(k_len=k_len, causal=corner, seed=3)
        for dtype, corner in product(DTYPES, (None, *CORNERS)):
            yield base.but(dtype=dtype, k_len=300, causal=corner, q_len=33, seed=4)


def absent(level: str) -> Iterator[Problem]:
    """Those of `ragged` that hold a key which exists for no batch element that reads it."""
    return (p for p in ragged(level) if p.key_lengths != "full" and p.k_len > 1)


def decodes(level: str) -> Iterator[Problem]:
    """Whole sequences, causal, to be decoded: lengths that are and are no multiple of a tile, grouped heads, a
    value_dim and a scale of their own. Both corners are the same in them."""
    base = Problem(q_len=33, k_len=33, head_dim=64, batch=2, q_heads=2, causal="upper_left", seed=1)
    yield base
    yield base.but(q_len=130, k_len=130, q_heads=8, kv_heads=2, dtype="bfloat16")
    yield base.but(q_len=17, k_len=17, q_heads=4, kv_heads=1, value_dim=32)
    yield base.but(q_len=40, k_len=40, batch=3, q_heads=6, kv_heads=2, value_dim=96, scale=0.3)
    if level == "full":
        for dtype, length in product(DTYPES, (2, 64, 65, 129)):
            yield base.but(q_len=length, k_len=length, dtype=dtype)


def refusable(level: str) -> Iterator[Problem]:
    """A call with key_lengths, to be made impossible."""
    yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=3, key_lengths="ragged", seed=1)


def merges(level: str) -> Iterator[Problem]:
    """Keys to be split in three: alike, far apart in their scores, and hidden, one part whole or a row whole."""
    base = Problem(q_len=5, k_len=50, head_dim=64, q_heads=2, seed=1)
    for dtype in DTYPES if level == "full" else DTYPES[:2]:
        yield base.but(dtype=dtype, q_heads=4, kv_heads=2)
        yield base.but(dtype=dtype, keys="growing")
        yield base.but(dtype=dtype, keys="falling", shift=-128.0)
        yield base.but(dtype=dtype, mask=Mask("bool", "11qk", "leading"))
        yield base.but(dtype=dtype, mask=Mask("bool", "bhqk", "empty_rows"), keys="growing")
    yield base.but(keys="falling", shift=128.0)
    yield base.but(mask=Mask("float", "qk", "leading"), q_len=1)
