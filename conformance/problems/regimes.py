"""Where numbers are hard: precision, range, long rows, options crossed, trends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.covering import array, modified
from attnspec.conformance.problems import alibi, sinks, softcap, windows
from attnspec.conformance.problems.sizes import CORNERS, DTYPES
from attnspec.spec.problem import Mask, Problem


def crossed(level: str) -> Iterator[Problem]:
    """The rows of the covering array of options, and those in which the options of few kernels cross the others."""
    yield from array()
    yield from modified()


def trends(level: str) -> Iterator[Problem]:
    """Enough rows, with scores of some size, for a trend to stand out."""
    for dtype in DTYPES:
        yield Problem(q_len=128, k_len=128, head_dim=64, q_heads=4, dtype=dtype, scores=2.0, seed=1)
    if level == "full":
        for dtype in DTYPES:
            yield Problem(q_len=64, k_len=512, head_dim=80, q_heads=4, dtype=dtype, scores=4.0, seed=2)


def regimes(level: str) -> Iterator[Problem]:
    """Where low precision shows: few keys, large scores, many keys, values that cancel (spec/accuracy.md,
    "Measured")."""
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
    yield from score_regimes()
    yield from long_and_crossed()
    yield from sinks.calls(level)
    yield from alibi.calls(level)
    yield from windows.regimes(level)
    yield from softcap.regimes(level)
    if level == "full":
        yield from coarse_grid()


def score_regimes() -> Iterator[Problem]:
    """Scores from all equal to one-hot, far from 0 both ways, growing and falling along the keys; values near the ends
    of the range; scales of every kind, with the causal triangle, whose hidden scores they must not touch."""
    base = Problem(q_len=33, k_len=130, head_dim=64, seed=1)
    hidden = base.but(mask=Mask("bool", "qk", "random"))
    for dtype in DTYPES:
        yield base.but(dtype=dtype, scores=32.0)
        yield base.but(dtype=dtype, keys="equal")
        yield base.but(dtype=dtype, keys="growing")
        yield base.but(dtype=dtype, keys="falling", causal="upper_left", q_len=130)
        yield base.but(dtype=dtype, shift=-128.0)
        yield base.but(dtype=dtype, shift=128.0, causal="upper_left")
        yield base.but(dtype=dtype, values="huge", scores=0.125)
        yield base.but(dtype=dtype, values="tiny")
    for causal, scale in product((None, *CORNERS), (-0.7, 0.0, 1e-30)):
        yield base.but(scale=scale, causal=causal)
        yield base.but(scale=scale, causal=causal, dtype="bfloat16")
    for shift in (-20000.0, -70000.0, 70000.0):
        yield hidden.but(shift=shift)
        yield base.but(shift=shift)
    yield base.but(mask=Mask("float", "qk", "sentinel"))
    yield base.but(mask=Mask("float", "1hqk", "low"), q_heads=2)


ROUNDED_TWICE = "q=256/k=4/d=16/dv=64/dtype=bfloat16/scores=3/values=sign_sorted/seed=318419"  # found by search


def long_and_crossed() -> Iterator[Problem]:
    """Options beyond the first tiles and crossed: paths that only long, grouped, narrow or one-row calls take."""
    base = Problem(q_len=260, k_len=260, head_dim=64, seed=3)
    hidden = Mask("bool", "b11k", "padding")
    for causal in CORNERS:
        yield base.but(causal=causal)
        yield base.but(causal=causal, q_len=150, k_len=600, mask=hidden, batch=2)
        yield base.but(causal=causal, q_len=2, k_len=3000, scale=0.2)
        yield base.but(
            causal=causal, q_heads=8, kv_heads=2, mask=hidden, batch=2, q_len=70, k_len=200, dtype="bfloat16"
        )
        yield base.but(causal=causal, q_len=1, k_len=200, q_heads=6, kv_heads=2, scale=-0.7, batch=2, mask=hidden)
    yield base.but(mask=Mask("float", "qk", "random"), q_len=150, k_len=300)
    yield base.but(mask=Mask("bool", "1hqk", "random"), q_heads=2, q_len=70, k_len=600)
    yield base.but(mask=Mask("float", "bhqk", "random"), q_len=1, k_len=150, batch=2, q_heads=2)
    yield base.but(mask=Mask("bool", "qk", "random"), batch=2, q_len=2, k_len=7)  # two dims are (q_len, k_len)
    for ratio in (4, 5, 7, 16):
        yield base.but(q_heads=2 * ratio, kv_heads=2, q_len=17, k_len=200, scale=0.3)
    for dim, value_dim in ((40, 40), (48, 160), (72, 192), (96, 96), (112, 33)):
        yield base.but(head_dim=dim, value_dim=value_dim, q_len=33, k_len=70)
        yield base.but(head_dim=dim, q_len=1, k_len=70, mask=Mask("bool", "11qk", "random"), causal="lower_right")
    yield base.but(batch=5, q_heads=20, q_len=9, k_len=9, head_dim=8, causal="upper_left")
    yield base.but(q_len=1, k_len=2600)
    yield base.but(q_len=200, k_len=1)
    yield base.but(q_len=1, k_len=33000, head_dim=8)  # indices beyond 15 bits
    yield base.but(q_len=33000, k_len=3, head_dim=8)
    yield Problem.parse(ROUNDED_TWICE)
    for dtype in DTYPES[:3]:
        yield base.but(dtype=dtype, q_len=4, k_len=33, head_dim=16, mask=Mask("float", "qk", "low_rows"), scores=0.0)


def coarse_grid() -> Iterator[Problem]:
    """Score sizes and value distributions crossed, at a long row, at two tiles and a bit, and between."""
    sizes = ((1, 2048, 128), (130, 130, 64), (33, 513, 80))
    values = ("normal", "uniform", "spiky", "constant", "sign_sorted")
    for dtype, scores, kind, (q_len, k_len, dim), seed in product(DTYPES, (0.125, 1.0, 8.0), values, sizes, (1, 2)):
        p = Problem(q_len=q_len, k_len=k_len, head_dim=dim, q_heads=2, dtype=dtype, seed=seed)
        yield p.but(scores=scores, values=kind)
