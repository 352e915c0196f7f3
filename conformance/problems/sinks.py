"""Calls with sinks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.problems.sizes import CORNERS, DTYPES
from attnspec.spec.problem import SINKS, Mask, Problem


def calls(level: str) -> Iterator[Problem]:
    """Sinks among the scores, above them all and far below, beside every other option, and in rows that see no key."""
    base = Problem(q_len=33, k_len=70, head_dim=64, batch=2, q_heads=4, sinks="normal", seed=1)
    for dtype, kind in product(DTYPES, SINKS):
        yield base.but(dtype=dtype, sinks=kind)
    for causal in CORNERS:
        yield base.but(causal=causal, kv_heads=2)
        yield base.but(causal=causal, q_len=70, k_len=33, sinks="low", mask=Mask("bool", "b11k", "random"))
    for kind, content in product(("bool", "float"), ("random", "empty_rows")):
        yield base.but(mask=Mask(kind, "bhqk", content))
    yield base.but(q_len=1, k_len=300, q_heads=6, kv_heads=1, scale=0.3, value_dim=96)
    yield base.but(k_len=1)
    yield base.but(scale=-0.7, scores=8.0)
    yield base.but(shift=-128.0)
    yield base.but(shift=128.0, sinks="low")
    yield base.but(q_len=5, key_lengths="zero", batch=3)
    yield base.but(q_heads=1, q_len=16, k_len=1024, scores=0.125, values="sign_sorted", dtype="bfloat16")
    if level == "full":
        for dtype, kind, (q_len, k_len) in product(DTYPES, SINKS, ((1, 1), (17, 129), (130, 130), (4, 2048))):
            yield base.but(dtype=dtype, sinks=kind, q_len=q_len, k_len=k_len)


def backwards(level: str) -> Iterator[Problem]:
    """The backward pass with sinks."""
    base = Problem(q_len=33, k_len=70, head_dim=64, q_heads=2, sinks="normal", grad="lse", seed=1)
    for dtype in DTYPES:
        yield base.but(dtype=dtype)
    yield base.but(batch=3, q_heads=6, kv_heads=2, causal="upper_left", grad="output")
    yield base.but(sinks="high")
    yield base.but(sinks="low", causal="lower_right", q_len=70, k_len=33)
    yield base.but(mask=Mask("float", "1hqk", "random"), batch=2)
    yield base.but(mask=Mask("bool", "bhqk", "empty_rows"), batch=2, dtype="bfloat16")
    if level == "full":
        for dtype, kind, grad in product(DTYPES, SINKS, ("output", "lse")):
            yield base.but(dtype=dtype, sinks=kind, grad=grad, batch=2, q_len=64, k_len=257)


def plain(level: str) -> Iterator[Problem]:
    """A few calls with sinks, for what a law says of them."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=2, q_heads=3, sinks="normal", seed=1)
    yield base
    yield base.but(dtype="bfloat16", q_heads=6, kv_heads=2, causal="upper_left")
    yield base.but(mask=Mask("bool", "bhqk", "empty_rows"))
    if level == "full":
        for dtype, k_len in product(DTYPES, (1, 64, 129)):
            yield base.but(dtype=dtype, k_len=k_len)


def refusable(level: str) -> Iterator[Problem]:
    """A call with sinks, to be made impossible."""
    yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=3, sinks="normal", seed=1)
