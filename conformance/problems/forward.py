"""Calls for probes, laws and the contract: shapes, masks, heads, dims."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.problems import lengths, softcap, windows
from attnspec.conformance.problems.sizes import BOOL_SHAPES, CORNERS, DTYPES, LARGEST_TILE, RAGGED
from attnspec.spec.problem import Mask, Problem


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
    for dtype in DTYPES[:3]:
        yield base.but(dtype=dtype, q_len=6, k_len=33, mask=Mask("float", "qk", "low_rows"))
    for causal in CORNERS:
        yield base.but(q_len=200, k_len=200, causal=causal)
        yield base.but(q_len=150, k_len=300, causal=causal, mask=Mask("bool", "qk", "random"))
    for dtype, causal in product(DTYPES[1:], (None, *CORNERS)):
        mask = Mask("bool", "b11k", "padding")
        yield base.but(batch=2, q_heads=2, q_len=21, k_len=43, dtype=dtype, causal=causal, mask=mask)
    yield from lengths.ragged(level)
    yield from windows.visible_sets(level)
    yield from softcap.visible_sets(level)
    if level == "full":
        for length, causal in product(range(1, 2 * LARGEST_TILE + 7), (None, *CORNERS)):
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


def lookups(level: str) -> Iterator[Problem]:
    """Calls in which each row can ask for one key among many: head_dim 64, so that random keys lie far apart."""
    base = Problem(q_len=33, k_len=70, head_dim=64, batch=2, q_heads=3, seed=1)
    for causal in (None, *CORNERS):
        yield base.but(causal=causal)
        yield base.but(causal=causal, q_len=70, k_len=33)
    yield base.but(q_heads=6, kv_heads=2)
    yield base.but(q_len=3)  # as many rows as heads
    yield base.but(q_heads=8, kv_heads=1, k_len=130)
    yield base.but(mask=Mask("bool", "bhqk", "random"), q_heads=4, kv_heads=2)
    yield base.but(mask=Mask("bool", "b11k", "padding"), k_len=131)
    for dtype in DTYPES[1:]:
        yield base.but(dtype=dtype, k_len=129)
    yield base.but(batch=3, kv_batch=1)
    yield base.but(batch=1, q_heads=1, k_len=300, q_len=65)
    if level == "full":
        for k_len in (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 513, 1025):
            yield base.but(k_len=k_len, q_len=5)


def head_dims(level: str) -> Iterator[Problem]:
    """Every class of head_dim: below a vector, no multiple of 8, between the usual tiles."""
    few = (1, 3, 8, 24, 40, 63, 64, 65, 80, 96, 128)
    for dim in (*few, 2, 4, 5, 7, 16, 32, 33, 48, 72, 100, 112, 127, 129, 160, 192, 256) if level == "full" else few:
        yield Problem(q_len=dim, k_len=dim, head_dim=dim, seed=1)
    for dtype in DTYPES[1:]:
        yield Problem(q_len=40, k_len=40, head_dim=40, dtype=dtype, seed=1)


def weight_sums(level: str) -> Iterator[Problem]:
    """Long and short rows, masked and grouped."""
    base = Problem(q_len=9, k_len=130, head_dim=64, batch=2, q_heads=2, seed=1)
    for dtype in DTYPES:
        yield base.but(dtype=dtype, scores=4.0)
    yield base.but(k_len=2048)
    yield base.but(mask=Mask("bool", "bhqk", "empty_rows"))
    yield base.but(mask=Mask("float", "qk", "random"))
    yield base.but(q_heads=6, kv_heads=2)
    for causal in CORNERS:
        yield base.but(causal=causal)


def far_apart(level: str) -> Iterator[Problem]:
    """Two small batch entries, to be put far apart."""
    yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=2, dtype="bfloat16", seed=1)


def refusable(level: str) -> Iterator[Problem]:
    """A plain call, to be made impossible."""
    yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=3, seed=1)


def plain(level: str) -> Iterator[Problem]:
    """A few calls of every kind, sizes all different, for the checks of the contract."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=2, q_heads=3, seed=1)
    yield base
    yield base.but(dtype="bfloat16", q_len=29, causal="upper_left")
    yield base.but(q_len=29, causal="lower_right")
    yield base.but(mask=Mask("bool", "bhqk", "random"), q_heads=6)
    yield base.but(dtype="float16", mask=Mask("float", "11qk", "random"))
    yield base.but(mask=Mask("bool", "bhqk", "leading"), q_len=29, causal="upper_left")
    yield base.but(q_len=1, k_len=1)
    yield base.but(mask=Mask("float", "bhqk", "empty_rows"))
    yield base.but(scale=0.0)
    if level == "full":
        for dtype, length in product(DTYPES, (1, 64, 130)):
            yield base.but(dtype=dtype, q_len=length, k_len=length + 5)
            yield base.but(dtype=dtype, k_len=length, q_len=length + 5, mask=Mask("bool", "b11k", "padding"))


def plain_and_lengths(level: str) -> Iterator[Problem]:
    """The calls of the contract, and one with key lengths."""
    yield from plain(level)
    yield Problem(q_len=5, k_len=29, head_dim=32, batch=3, q_heads=2, key_lengths="ragged", seed=1)


def biased_triangles(level: str) -> Iterator[Problem]:
    """An additive mask together with the causal triangle."""
    base = Problem(q_len=33, k_len=70, head_dim=32, q_heads=2, mask=Mask("float", "bhqk", "bias"), seed=1)
    for causal, dtype in product(CORNERS, DTYPES if level == "full" else DTYPES[:2]):
        yield base.but(causal=causal, dtype=dtype)
        yield base.but(causal=causal, dtype=dtype, q_len=70)


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
    yield from windows.hiding(level)
    yield from softcap.hiding(level)
