"""Backward passes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.covering import array, modified
from attnspec.conformance.problems import alibi, forward, sinks, softcap, windows
from attnspec.conformance.problems.sizes import CORNERS, DTYPES, LARGEST_TILE, RAGGED
from attnspec.spec.problem import Mask, Problem


def passes(level: str) -> Iterator[Problem]:
    """The backward pass: ragged lengths, both corners, masks, biases that broadcast, groups, a value_dim of its own,
    rows that see nothing, an lse far from 0, and a loss on the lse."""
    base = Problem(q_len=33, k_len=70, head_dim=64, q_heads=2, grad="output", seed=1)
    for dtype in DTYPES:
        yield base.but(dtype=dtype)
        yield base.but(dtype=dtype, batch=2, q_heads=6, kv_heads=2, causal="upper_left", q_len=70)
        yield base.but(dtype=dtype, scores=8.0, q_len=64, k_len=64)
        yield base.but(dtype=dtype, q_heads=1, q_len=16, k_len=1024, scores=0.125)
        yield base.but(dtype=dtype, q_heads=1, q_len=1024, k_len=16, values="sign_sorted")
    for causal in CORNERS:
        yield base.but(causal=causal)
        yield base.but(causal=causal, q_len=70, k_len=33, grad="lse")
        yield base.but(causal=causal, shift=-128.0, grad="lse")
        yield base.but(causal=causal, shift=128.0, k_len=130)
        yield base.but(causal=causal, mask=Mask("bool", "bhqk", "random"), batch=2)
    for shape in ("k", "qk", "1hqk", "b11k", "bh1k", "bhqk", "bhq1"):
        yield base.but(mask=Mask("float", shape, "random"), batch=2, grad="lse" if "q" in shape else "output")
    for kind in ("bool", "float"):
        yield base.but(mask=Mask(kind, "bhqk", "empty_rows"), batch=2, grad="lse")
        yield base.but(mask=Mask(kind, "b11k", "padding"), batch=2, dtype="bfloat16")
    for scale in (-0.7, 0.0, 3.0):
        yield base.but(scale=scale)
    for shift in (-128.0, 128.0):
        yield base.but(shift=shift)
        yield base.but(shift=shift, mask=Mask("bool", "qk", "random"))
    yield base.but(q_len=70, mask=Mask("float", "bhqk", "random"))
    yield base.but(values="huge", dtype="float16")
    yield base.but(value_dim=32, dtype="float16")
    yield base.but(head_dim=40, value_dim=72)
    for dim in (80, 128, 256):
        yield base.but(head_dim=dim, q_len=9)
    yield base.but(q_len=150, k_len=200, head_dim=16)
    yield base.but(q_heads=1, q_len=5, k_len=2100, head_dim=16)
    yield base.but(batch=5, q_heads=12, q_len=7, k_len=9, head_dim=8)
    yield base.but(batch=3, kv_batch=1)
    yield base.but(q_heads=8, kv_heads=1, grad="lse", dtype="bfloat16")
    yield base.but(q_len=1, q_heads=4, kv_heads=2)
    yield base.but(k_len=1)
    for corner in (None, *CORNERS):
        yield base.but(key_lengths="ragged", batch=3, causal=corner, q_len=5)
    yield base.but(key_lengths="zero", batch=3, q_len=5, grad="lse")
    yield from sinks.backwards(level)
    yield from alibi.backwards(level)
    yield from windows.passes(level)
    yield from softcap.passes(level)
    if level == "full":
        for length, corner in product((1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 129), (None, *CORNERS)):
            yield base.but(q_len=length, k_len=length + 3, causal=corner, seed=2)
        for dtype, corner, scores in product(DTYPES, (None, "upper_left"), (0.125, 1.0, 8.0)):
            yield base.but(dtype=dtype, causal=corner, scores=scores, q_len=130, k_len=130, seed=3)


def crossed(level: str) -> Iterator[Problem]:
    """The rows of the covering array of options, with gradients of the output and of the lse in turn, and with key
    lengths in every third."""
    for turn, problem in enumerate((*array(), *modified())):
        lengths = "ragged" if turn % 3 == 0 and problem.batch > 1 else None
        yield problem.but(grad=("output", "lse")[turn % 2], key_lengths=lengths)


def absent(level: str) -> Iterator[Problem]:
    """Backward passes with key lengths."""
    base = Problem(q_len=5, k_len=70, head_dim=64, batch=3, q_heads=2, key_lengths="ragged", grad="output", seed=1)
    yield base
    yield base.but(key_lengths="zero", q_heads=6, kv_heads=2, dtype="bfloat16")
    yield base.but(causal="lower_right")
    yield base.but(kv_batch=1, key_lengths="short")


def visible_sets(level: str) -> Iterator[Problem]:
    """Visible sets for the backward pass: ragged lengths in both corners, masks of every kind, groups, lengths."""
    base = Problem(q_len=1, k_len=1, head_dim=64, grad="output", seed=1)
    for (q, k), causal in product(RAGGED, (None, *CORNERS)):
        yield base.but(q_len=q, k_len=k, causal=causal)
    for shape in ("k", "qk", "hqk", "b1qk", "b11k", "bhqk"):
        yield base.but(batch=2, q_heads=3, q_len=19, k_len=37, head_dim=32, mask=Mask("bool", shape, "random"))
    for causal in (None, *CORNERS):
        problem = base.but(batch=2, q_heads=4, kv_heads=2, q_len=33, k_len=70, causal=causal)
        yield problem.but(mask=Mask("bool", "bhqk", "empty_rows"), dtype="bfloat16")
        yield problem.but(key_lengths="zero", q_len=5)
    yield from windows.backward_visible_sets(level)
    if level == "full":
        for length, causal in product(range(1, 2 * LARGEST_TILE + 7, 3), (None, *CORNERS)):
            yield base.but(q_len=length, k_len=length + 7, causal=causal, seed=2)


def sums(level: str) -> Iterator[Problem]:
    """Long sums over rows and over keys whose terms have one sign, in the first feature at least: `shift` makes that
    feature of all queries, and of all keys, the same."""
    base = Problem(q_len=1024, k_len=16, head_dim=16, scores=0.125, shift=8.0, grad="output", seed=1)
    for dtype in DTYPES[:3]:
        yield base.but(dtype=dtype)
        yield base.but(dtype=dtype, q_len=16, k_len=1024, values="sign_sorted")


def hiding(level: str) -> Iterator[Problem]:
    """The backward pass where keys are hidden from every row."""
    for problem in forward.hiding(level):
        yield problem.but(grad="output")


def plain(level: str) -> Iterator[Problem]:
    """A few backward passes, for the checks of the contract."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=2, q_heads=4, kv_heads=2, grad="output", seed=1)
    yield base
    yield base.but(dtype="bfloat16", causal="upper_left", q_len=29)
    yield base.but(grad="lse", mask=Mask("float", "11qk", "random"))
