"""Calls with dropout."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.problems.sizes import DTYPES
from attnspec.spec.problem import Mask, Problem
from attnspec.spec.window import Window


def calls(level: str) -> Iterator[Problem]:
    """Dropout beside every other option: rates of which 1 - p is exact and not, corners, masks, groups, lengths."""
    base = Problem(q_len=17, k_len=29, head_dim=32, batch=2, q_heads=3, dropout=0.25, seed=1)
    yield base
    yield base.but(q_len=33, k_len=70, dropout=0.1)  # more keys than fit into one identity
    yield base.but(q_len=29, dropout=0.5, causal="upper_left", dtype="bfloat16")
    yield base.but(dropout=0.75, causal="lower_right")
    yield base.but(mask=Mask("bool", "bhqk", "empty_rows"), dtype="float16")
    yield base.but(mask=Mask("float", "11qk", "random"), q_heads=6, kv_heads=2)
    yield base.but(dtype="float64", q_len=1)
    yield base.but(key_lengths="ragged", dropout=0.5)
    yield base.but(window=Window(5, 2), dropout=0.5)
    yield base.but(dropout=0.9)
    if level == "full":
        for dtype, p in product(DTYPES, (0.05, 0.3, 0.5, 0.9)):
            yield base.but(dtype=dtype, dropout=p, k_len=65, head_dim=64)


def rates(level: str) -> Iterator[Problem]:
    """Dropout of many weights, for statistics."""
    base = Problem(q_len=64, k_len=64, head_dim=64, batch=3, q_heads=4, dropout=0.25, seed=1)
    yield base
    yield base.but(q_len=33, k_len=65, head_dim=80, dropout=0.5, dtype="bfloat16")
    yield base.but(kv_heads=2, q_len=50, k_len=48, dropout=0.75)
    yield base.but(batch=1, q_heads=6, q_len=150, k_len=140, head_dim=140, dropout=0.05)  # beyond a tile of 64 or 128
    if level == "full":
        for p in (0.05, 0.1, 0.5, 0.9):
            yield base.but(dropout=p, q_len=130, k_len=128, head_dim=128)


def means(level: str) -> Iterator[Problem]:
    """Dropout of few weights, to be drawn many times."""
    base = Problem(q_len=9, k_len=33, head_dim=32, q_heads=2, dropout=0.5, seed=1)
    yield base
    yield base.but(dropout=0.25, causal="upper_left", q_len=33, dtype="bfloat16")


def plain(level: str) -> Iterator[Problem]:
    """A few calls with dropout, for what needs no statistics."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=2, q_heads=3, dropout=0.5, seed=1)
    yield base
    yield base.but(dtype="bfloat16", causal="upper_left", q_len=29)
    yield base.but(mask=Mask("bool", "bhqk", "random"))


def backwards(level: str) -> Iterator[Problem]:
    """The backward pass with dropout."""
    base = Problem(q_len=9, k_len=21, head_dim=32, q_heads=2, dropout=0.25, grad="output", seed=1)
    yield base
    yield base.but(q_len=21, causal="upper_left", dtype="bfloat16", dropout=0.5)
    yield base.but(q_len=5, batch=2, q_heads=4, kv_heads=2, dropout=0.5)
    yield base.but(mask=Mask("bool", "bhqk", "random"), grad="lse", dropout=0.75)
    yield base.but(q_len=40, k_len=50, head_dim=50)
    if level == "full":
        for dtype, p in product(DTYPES, (0.1, 0.5)):
            yield base.but(dtype=dtype, dropout=p, k_len=65, head_dim=64)


def refusable(level: str) -> Iterator[Problem]:
    """One call with dropout, to be made impossible."""
    yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=3, dropout=0.5, seed=1)
