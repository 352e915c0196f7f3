"""The problems that the checks are run on, one function a set. `quick` is seconds, `full` a minute or two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.spec.problem import Mask, Problem

RAGGED = ((1, 1), (1, 70), (5, 70), (33, 70), (70, 33), (64, 128), (129, 131), (17, 17))
CORNERS = ("upper_left", "lower_right")
BOOL_SHAPES = ("k", "qk", "1k", "q1", "hqk", "1qk", "bhqk", "b1qk", "1hqk", "11qk", "b11k", "bh1k", "1h1k", "bhq1")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def visible_sets(level: str) -> Iterator[Problem]:
    """Lengths that are no multiple of a tile, both corners, every mask shape, masks that leave rows empty."""
    base = Problem(q_len=1, k_len=1, head_dim=64, seed=1)
    for (q, k), causal in product(RAGGED, (None, *CORNERS)):
        yield base.but(q_len=q, k_len=k, causal=causal)
    for i, shape in enumerate(BOOL_SHAPES):
        problem = base.but(batch=2, q_heads=3, q_len=19, k_len=37 + i, head_dim=32)
        yield problem.but(mask=Mask("bool", shape, "random"))
        yield problem.but(mask=Mask("float", shape, "random"))
    for content, kind, causal in product(("empty_rows", "empty_head", "leading"), ("bool", "float"), (None, *CORNERS)):
        shape = "bhqk" if content != "leading" else "qk"
        problem = base.but(batch=2, q_heads=4, kv_heads=2, q_len=33, k_len=70, causal=causal)
        yield problem.but(mask=Mask(kind, shape, content))
    for dtype, causal in product(DTYPES[1:], (None, *CORNERS)):
        mask = Mask("bool", "b11k", "padding")
        yield base.but(batch=2, q_heads=2, q_len=21, k_len=43, dtype=dtype, causal=causal, mask=mask)
    if level == "full":
        for length, causal in product(range(1, 135), (None, *CORNERS)):
            if causal != "lower_right":  # the same as upper_left where the lengths are equal
                yield base.but(q_len=length, k_len=length, causal=causal, seed=2)
            yield base.but(q_len=7, k_len=length, causal=causal, seed=3)


def head_maps(level: str) -> Iterator[Problem]:
    """Ratios that tell contiguous groups from tiled ones, one key head included."""
    base = Problem(q_len=9, k_len=21, head_dim=16, seed=1)
    for (q_heads, kv_heads), causal in product(((6, 3), (6, 2), (8, 4), (8, 1), (12, 4)), (None, *CORNERS)):
        yield base.but(batch=2, q_heads=q_heads, kv_heads=kv_heads, causal=causal)
    for dtype in DTYPES[1:] if level == "full" else ("bfloat16",):
        yield base.but(q_heads=6, kv_heads=3, dtype=dtype)


def plain(level: str) -> Iterator[Problem]:
    """A few calls of every kind, sizes all different, for the checks of the contract."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=2, q_heads=3, seed=1)
    yield base
    yield base.but(dtype="bfloat16", q_len=29, causal="upper_left")
    yield base.but(q_len=29, causal="lower_right")
    yield base.but(mask=Mask("bool", "bhqk", "random"), q_heads=6)
    yield base.but(dtype="float16", mask=Mask("float", "11qk", "random"))
    if level == "full":
        for dtype, length in product(DTYPES, (1, 64, 130)):
            yield base.but(dtype=dtype, q_len=length, k_len=length + 5)
            yield base.but(dtype=dtype, k_len=length, q_len=length + 5, mask=Mask("bool", "b11k", "padding"))


def empties(level: str) -> Iterator[Problem]:
    """No keys; no queries; no batch."""
    base = Problem(q_len=3, k_len=5, head_dim=16, batch=2, q_heads=2)
    for dtype in DTYPES if level == "full" else DTYPES[:2]:
        yield base.but(dtype=dtype, k_len=0)
        yield base.but(dtype=dtype, q_len=0)
        yield base.but(dtype=dtype, batch=0)


def hiding(level: str) -> Iterator[Problem]:
    """Keys that no row of any head sees: padding, a hidden first half, a head that sees nothing, the causal future."""
    base = Problem(q_len=23, k_len=77, head_dim=32, batch=2, q_heads=2, seed=1)
    for dtype in DTYPES if level == "full" else DTYPES[:2]:
        for kind, (shape, content) in product(
            ("bool", "float"), (("b11k", "padding"), ("11qk", "leading"), ("bhqk", "empty_head"))
        ):
            yield base.but(dtype=dtype, mask=Mask(kind, shape, content))
        yield base.but(dtype=dtype, causal="upper_left")


def regimes(level: str) -> Iterator[Problem]:
    """Where low precision shows: few keys, large scores, many keys, values that cancel (spec/accuracy.md, "Power")."""
    base = Problem(q_len=64, k_len=64, head_dim=64, q_heads=2, seed=1)
    for dtype in ("bfloat16", "float16"):
        yield base.but(dtype=dtype, scores=16.0)  # scores or weights stored too coarsely
        yield base.but(dtype=dtype, k_len=128, scores=8.0)
        long = base.but(dtype=dtype, q_heads=1, q_len=16, k_len=1024)
        yield long.but(scores=0.125, values="sign_sorted")  # P V summed too coarsely
        yield long.but(values="uniform")
        yield long.but(k_len=2048, values="constant")
        yield base.but(dtype=dtype, q_heads=1, causal="upper_left", scores=8.0, q_len=65, k_len=65)
    yield base.but(k_len=4, head_dim=2, value_dim=64, scores=1.5)  # a short constant for log2 e
    yield base.but(k_len=8, head_dim=16, value_dim=64, scores=1.5)
    yield base.but(scores=8.0)
    yield base.but(q_heads=1, q_len=16, k_len=1024)
    yield base.but(k_len=130, scale=-0.7, values="spiky")
    yield base.but(q_heads=1, causal="upper_left", q_len=65, k_len=65)
    if level == "full":
        yield from coarse_grid()


def coarse_grid() -> Iterator[Problem]:
    """Score sizes and value distributions crossed, at a long row, at two tiles and a bit, and between."""
    sizes = ((1, 2048, 128), (130, 130, 64), (33, 513, 80))
    values = ("normal", "uniform", "spiky", "constant", "sign_sorted")
    for dtype, scores, kind, (q_len, k_len, dim), seed in product(DTYPES, (0.125, 1.0, 8.0), values, sizes, (1, 2)):
        p = Problem(q_len=q_len, k_len=k_len, head_dim=dim, q_heads=2, dtype=dtype, seed=seed)
        yield p.but(scores=scores, values=kind)
