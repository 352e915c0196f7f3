"""Calls with a window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice, product

from attnspec.conformance.problems.sizes import CORNERS, DTYPES, LARGEST_TILE, RAGGED
from attnspec.spec.problem import Mask, Problem
from attnspec.spec.window import Window

PLACES = tuple(product((None, "causal"), CORNERS))  # without and with the triangle, in both corners
SIZES = ((3, 0), (0, 0), (2, 5), (-1, 2), (0, 3), (4, -1), (7, 7))  # of windows, narrow
AT_TILES = ((31, 0), (64, 0), (63, 32), (128, -1), (0, 127), (15, 16), (-1, 65))  # that begin and end at tiles
BASE = Problem(q_len=33, k_len=70, head_dim=64, q_heads=2, seed=1)


def placed(problem: Problem, size: tuple[int, int], place: tuple[str | None, str]) -> Problem:
    """Return the problem with a window at a corner, causal or not."""
    causal, corner = place
    return problem.but(causal=corner if causal else None, window=Window(*size, None if causal else corner))


def each(problem: Problem, sizes: Iterator[tuple[int, int]]) -> Iterator[Problem]:
    """Yield the problem in every place, each time with the next window."""
    yield from (placed(problem, next(sizes), place) for place in PLACES)


def visible_sets(level: str) -> Iterator[Problem]:
    """Ragged lengths in every place of the window, windows that end at tiles, rows that see nothing, and windows beside
    masks, groups, key lengths and each dtype."""
    sizes, tiles = cycle(SIZES), cycle(AT_TILES)
    for (q_len, k_len), _ in product(RAGGED, range(2)):
        yield from each(BASE.but(q_len=q_len, k_len=k_len, q_heads=1), sizes)
    for q_len, k_len in ((200, 200), (150, 300), (300, 150)):
        yield from each(BASE.but(q_len=q_len, k_len=k_len, q_heads=1), tiles)
    yield from each(BASE.but(batch=2, q_heads=4, kv_heads=2, mask=Mask("bool", "bhqk", "random")), sizes)
    yield from each(BASE.but(batch=2, mask=Mask("float", "qk", "leading"), q_len=70, k_len=33), sizes)
    yield from each(BASE.but(batch=3, key_lengths="zero", q_len=5), sizes)
    yield from each(BASE.but(batch=3, key_lengths="ragged", q_len=1, k_len=130), islice(sizes, 4))
    for dtype in DTYPES[1:]:
        yield from each(BASE.but(dtype=dtype), sizes)
    if level == "full":
        for length in range(1, 2 * LARGEST_TILE + 7, 3):
            yield from each(BASE.but(q_len=length, k_len=length + 5, seed=2), tiles)


def backward_visible_sets(level: str) -> Iterator[Problem]:
    """Visible sets of windows for the backward pass."""
    sizes, tiles = cycle(SIZES), cycle(AT_TILES)
    base = BASE.but(grad="output", q_heads=1)
    for q_len, k_len in RAGGED[1:]:
        yield from each(base.but(q_len=q_len, k_len=k_len), sizes)
    for q_len, k_len in ((150, 150), (150, 200)):
        yield from each(base.but(q_len=q_len, k_len=k_len, head_dim=32), tiles)
    yield from each(base.but(batch=2, q_heads=4, kv_heads=2, mask=Mask("bool", "bhqk", "random")), sizes)
    yield from each(base.but(batch=2, key_lengths="zero", q_len=5), sizes)


def hiding(level: str) -> Iterator[Problem]:
    """Windows that leave keys which no row sees, before them and after them."""
    base = Problem(q_len=23, k_len=77, head_dim=32, batch=2, q_heads=2, seed=1)
    for dtype in DTYPES if level == "full" else DTYPES[:2]:
        for corner in CORNERS:
            yield base.but(dtype=dtype, window=Window(5, 3, corner))
        yield base.but(dtype=dtype, window=Window(4, 0), causal="lower_right")


def regimes(level: str) -> Iterator[Problem]:
    """Windows where numbers tell: beyond a tile, beside a bias, with rows that see nothing, in 16 bits."""
    base = Problem(q_len=130, k_len=130, head_dim=64, seed=3)
    for place in PLACES:
        yield placed(base, (40, 8), place)
        yield placed(base.but(k_len=300, q_heads=4, kv_heads=2, dtype="bfloat16", scores=8.0), (100, -1), place)
        yield placed(base.but(q_len=70, k_len=20, dtype="float16"), (5, 5), place)
    for corner in CORNERS:
        yield placed(base.but(mask=Mask("float", "qk", "random"), q_len=40), (16, 3), (None, corner))
        yield placed(base.but(q_len=1, k_len=700, batch=2, q_heads=6, kv_heads=2), (255, 0), ("causal", corner))
        yield placed(base.but(shift=-128.0), (20, 4), ("causal", corner))
        yield placed(base.but(batch=3, key_lengths="ragged", q_len=9), (12, 0), ("causal", corner))


def passes(level: str) -> Iterator[Problem]:
    """Backward passes with windows: beyond a tile, with keys and rows that nobody reads, groups, a loss on the lse."""
    base = Problem(q_len=70, k_len=70, head_dim=64, grad="output", seed=3)
    for place in PLACES:
        yield placed(base.but(grad="lse"), (9, 4), place)
        yield placed(base.but(q_len=33, k_len=130, q_heads=4, kv_heads=2), (40, -1), place)
        yield placed(base.but(q_len=70, k_len=20, dtype="bfloat16"), (5, 5), place)
    for corner in CORNERS:
        yield placed(
            base.but(mask=Mask("float", "1hqk", "random"), grad="lse", dtype="float16"), (16, 3), (None, corner)
        )
        yield placed(base.but(shift=-128.0, q_len=40), (20, 4), ("causal", corner))
        yield placed(base.but(batch=3, key_lengths="ragged", q_len=9), (12, 2), (None, corner))


def wide(level: str) -> Iterator[Problem]:
    """Calls without a window, to be given one that hides nothing."""
    for q_len, k_len in ((33, 70), (70, 33), (130, 130)):
        for causal in (None, *CORNERS):
            yield BASE.but(
                q_len=q_len, k_len=k_len, causal=causal, window=Window(-1, -1, None if causal else CORNERS[0])
            )


def refusable(level: str) -> Iterator[Problem]:
    """A call with a window, to be made impossible."""
    yield Problem(q_len=9, k_len=9, head_dim=16, batch=2, q_heads=3, window=Window(3, 2), seed=1)
