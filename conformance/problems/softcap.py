"""Calls with a cap on the scores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.problems.sizes import CORNERS, DTYPES
from attnspec.spec.problem import Mask, Problem
from attnspec.spec.window import Window

BASE = Problem(q_len=33, k_len=70, head_dim=64, q_heads=2, softcap=1.5, scores=4.0, seed=1)


def beside(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with a cap beside each other option that touches a score."""
    for causal in CORNERS:
        yield problem.but(causal=causal)
    yield problem.but(mask=Mask("bool", "bhqk", "empty_rows"), batch=2)
    yield problem.but(mask=Mask("float", "qk", "random"), softcap=4.0)
    yield problem.but(window=Window(5, 2), causal=None)
    yield problem.but(scale=-0.7, q_heads=4, kv_heads=2)
    yield problem.but(batch=3, key_lengths="ragged", q_len=5)


def visible_sets(level: str) -> Iterator[Problem]:
    """Masks and triangles beside a small cap, which must not lift what they hide."""
    yield from beside(BASE)
    for dtype in DTYPES[1:]:
        yield BASE.but(dtype=dtype, mask=Mask("bool", "qk", "leading"))


def hiding(level: str) -> Iterator[Problem]:
    """Hidden keys beside a cap, which holds their scores near the visible ones."""
    base = Problem(q_len=23, k_len=77, head_dim=32, batch=2, q_heads=2, softcap=2.0, seed=1)
    for kind in ("bool", "float"):
        yield base.but(mask=Mask(kind, "b11k", "padding"))
    yield base.but(causal="upper_left", dtype="bfloat16")


def regimes(level: str) -> Iterator[Problem]:
    """Caps below the scores, at them and above them, in each dtype; beside other options; a single key; long rows."""
    for dtype, (cap, scores) in product(DTYPES, ((1.5, 8.0), (30.0, 8.0), (50.0, 1.0))):
        yield BASE.but(dtype=dtype, softcap=cap, scores=scores)
    yield from beside(BASE)
    yield from beside(BASE.but(softcap=20.0, scores=8.0, dtype="bfloat16"))
    yield BASE.but(k_len=1)
    yield BASE.but(q_len=5, k_len=1024, softcap=50.0, scores=16.0, q_heads=1)
    yield BASE.but(mask=Mask("float", "1hqk", "low"))
    for shift in (-128.0, 128.0):
        yield BASE.but(shift=shift, softcap=100.0)


def passes(level: str) -> Iterator[Problem]:
    """Backward passes with caps."""
    for dtype, (cap, scores) in product(DTYPES, ((1.5, 2.0), (30.0, 8.0), (50.0, 1.0))):
        yield BASE.but(dtype=dtype, softcap=cap, scores=scores, grad="output")
    for turn, problem in enumerate(beside(BASE.but(scores=2.0))):
        yield problem.but(grad=("lse", "output")[turn % 2])
    yield BASE.but(q_len=70, k_len=5, grad="lse", dtype="bfloat16", scores=2.0)
    for dtype in ("bfloat16", "float16"):
        yield BASE.but(dtype=dtype, scores=2.0, mask=Mask("float", "hqk", "random"), grad="output")


def few_keys(level: str) -> Iterator[Problem]:
    """Two keys, whose scores are chosen by the check."""
    for dtype, cap in product(DTYPES, (1.5, 10.0)):
        yield Problem(q_len=19, k_len=2, head_dim=16, dtype=dtype, softcap=cap, seed=1)


def far(level: str) -> Iterator[Problem]:
    """Caps far above the scores."""
    for dtype in DTYPES:
        yield BASE.but(dtype=dtype, scores=1.0, softcap=2.0**20 if dtype == "float64" else 2.0**12)
    yield BASE.but(scores=1.0, softcap=2.0**12, mask=Mask("float", "qk", "random"), causal="upper_left")


def refusable(level: str) -> Iterator[Problem]:
    """A call with a cap, to be made impossible."""
    yield Problem(q_len=9, k_len=9, head_dim=16, batch=2, q_heads=3, softcap=2.0, seed=1)
