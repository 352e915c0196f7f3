"""The problems that the checks are run on, one function a set. `quick` is seconds, `full` a minute or two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.covering import array
from attnspec.spec.problem import Mask, Problem

RAGGED = ((1, 1), (1, 70), (5, 70), (33, 70), (70, 33), (64, 128), (129, 131), (17, 17))
CORNERS = ("upper_left", "lower_right")
BOOL_SHAPES = ("k", "qk", "1k", "q1", "hqk", "1qk", "bhqk", "b1qk", "1hqk", "11qk", "b11k", "bh1k", "1h1k", "bhq1")
DTYPES = ("float32", "bfloat16", "float16", "float64")
LARGEST_TILE = 128  # of keys or rows, that lengths go round twice


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
    yield from with_lengths(level)
    if level == "full":
        for length, causal in product(range(1, 2 * LARGEST_TILE + 7), (None, *CORNERS)):
            if causal != "lower_right":  # the same as upper_left where the lengths are equal
                yield base.but(q_len=length, k_len=length, causal=causal, seed=2)
            yield base.but(q_len=7, k_len=length, causal=causal, seed=3)


def with_lengths(level: str) -> Iterator[Problem]:
    """Batches in which each element has its own number of keys: causal, grouped, masked, one row, none of the keys."""
    base = Problem(q_len=5, k_len=70, head_dim=64, batch=3, q_heads=2, key_lengths="ragged", seed=1)
    for causal in (None, *CORNERS):
        yield base.but(causal=causal)
        yield base.but(causal=causal, q_len=1, k_len=130)
        yield base.but(causal=causal, key_lengths="zero", q_heads=6, kv_heads=2)
        yield base.but(causal=causal, q_len=70, k_len=33, dtype="bfloat16")
    yield base.but(key_lengths="full")
    yield base.but(kv_batch=1, q_len=9)
    yield base.but(mask=Mask("bool", "bhqk", "random"), dtype="float16")
    yield base.but(mask=Mask("float", "11qk", "random"), key_lengths="zero")
    unsorted = base.but(batch=4, seed=4)
    for causal in (None, *CORNERS):
        yield unsorted.but(causal=causal, k_len=64, key_lengths="zero")  # the longest ends with a tile
    for causal in (None, "lower_right"):
        one_row = unsorted.but(causal=causal, q_len=1, k_len=300, q_heads=6, kv_heads=2)
        yield one_row.but(mask=Mask("bool", "b11k", "random"), scale=0.3, value_dim=96)
    yield unsorted.but(mask=Mask("float", "bhqk", "random"), causal="upper_left")
    if level == "full":
        for k_len, corner in product(range(1, 2 * LARGEST_TILE + 7, 5), (None, *CORNERS)):
            yield base.but(k_len=k_len, causal=corner, seed=3)
        for dtype, corner in product(DTYPES, (None, *CORNERS)):
            yield base.but(dtype=dtype, k_len=300, causal=corner, q_len=33, seed=4)


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


def plain_and_lengths(level: str) -> Iterator[Problem]:
    """The calls of the contract, and one with key lengths."""
    yield from plain(level)
    yield Problem(q_len=5, k_len=29, head_dim=32, batch=3, q_heads=2, key_lengths="ragged", seed=1)


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


def backwards(level: str) -> Iterator[Problem]:
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
    yield base.but(batch=3, kv_batch=1)
    yield base.but(q_heads=8, kv_heads=1, grad="lse", dtype="bfloat16")
    yield base.but(q_len=1, q_heads=4, kv_heads=2)
    yield base.but(k_len=1)
    for corner in (None, *CORNERS):
        yield base.but(key_lengths="ragged", batch=3, causal=corner, q_len=5)
    yield base.but(key_lengths="zero", batch=3, q_len=5, grad="lse")
    if level == "full":
        for length, corner in product((1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 127, 128, 129), (None, *CORNERS)):
            yield base.but(q_len=length, k_len=length + 3, causal=corner, seed=2)
        for dtype, corner, scores in product(DTYPES, (None, "upper_left"), (0.125, 1.0, 8.0)):
            yield base.but(dtype=dtype, causal=corner, scores=scores, q_len=130, k_len=130, seed=3)


def backward_visible_sets(level: str) -> Iterator[Problem]:
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
    if level == "full":
        for length, causal in product(range(1, 2 * LARGEST_TILE + 7, 3), (None, *CORNERS)):
            yield base.but(q_len=length, k_len=length + 7, causal=causal, seed=2)


def backward_sums(level: str) -> Iterator[Problem]:
    """Long sums over rows and over keys whose terms have one sign, in the first feature at least: `shift` makes that
    feature of all queries, and of all keys, the same."""
    base = Problem(q_len=1024, k_len=16, head_dim=16, scores=0.125, shift=8.0, grad="output", seed=1)
    for dtype in DTYPES[:3]:
        yield base.but(dtype=dtype)
        yield base.but(dtype=dtype, q_len=16, k_len=1024, values="sign_sorted")


def backward_hiding(level: str) -> Iterator[Problem]:
    """The backward pass where keys are hidden from every row."""
    for problem in hiding(level):
        yield problem.but(grad="output")


def backward_plain(level: str) -> Iterator[Problem]:
    """A few backward passes, for the checks of the contract."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=2, q_heads=4, kv_heads=2, grad="output", seed=1)
    yield base
    yield base.but(dtype="bfloat16", causal="upper_left", q_len=29)
    yield base.but(grad="lse", mask=Mask("float", "11qk", "random"))


def dropouts(level: str) -> Iterator[Problem]:
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
    if level == "full":
        for dtype, p in product(DTYPES, (0.05, 0.3, 0.5, 0.9)):
            yield base.but(dtype=dtype, dropout=p, k_len=65, head_dim=64)


def dropout_rates(level: str) -> Iterator[Problem]:
    """Dropout of many weights, for statistics."""
    base = Problem(q_len=64, k_len=64, head_dim=64, batch=3, q_heads=4, dropout=0.25, seed=1)
    yield base
    yield base.but(q_len=33, k_len=65, head_dim=80, dropout=0.5, dtype="bfloat16")
    yield base.but(kv_heads=2, q_len=50, k_len=48, dropout=0.75)
    if level == "full":
        for p in (0.05, 0.1, 0.5, 0.9):
            yield base.but(dropout=p, q_len=130, k_len=128, head_dim=128)


def dropout_means(level: str) -> Iterator[Problem]:
    """Dropout of few weights, to be drawn many times."""
    base = Problem(q_len=9, k_len=33, head_dim=32, q_heads=2, dropout=0.5, seed=1)
    yield base
    yield base.but(dropout=0.25, causal="upper_left", q_len=33, dtype="bfloat16")


def dropout_plain(level: str) -> Iterator[Problem]:
    """A few calls with dropout, for what needs no statistics."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=2, q_heads=3, dropout=0.5, seed=1)
    yield base
    yield base.but(dtype="bfloat16", causal="upper_left", q_len=29)
    yield base.but(mask=Mask("bool", "bhqk", "random"))


def dropout_backwards(level: str) -> Iterator[Problem]:
    """The backward pass with dropout."""
    base = Problem(q_len=9, k_len=21, head_dim=32, q_heads=2, dropout=0.25, grad="output", seed=1)
    yield base
    yield base.but(q_len=21, causal="upper_left", dtype="bfloat16", dropout=0.5)
    yield base.but(q_len=5, batch=2, q_heads=4, kv_heads=2, dropout=0.5)
    yield base.but(mask=Mask("bool", "bhqk", "random"), grad="lse", dropout=0.75)
    if level == "full":
        for dtype, p in product(DTYPES, (0.1, 0.5)):
            yield base.but(dtype=dtype, dropout=p, k_len=65, head_dim=64)


def dropout_refusable(level: str) -> Iterator[Problem]:
    """One call with dropout, to be made impossible."""
    yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=3, dropout=0.5, seed=1)


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


def refusable_lengths(level: str) -> Iterator[Problem]:
    """A call with key_lengths, to be made impossible."""
    yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=3, key_lengths="ragged", seed=1)


def crossed(level: str) -> Iterator[Problem]:
    """The rows of the covering array of options."""
    yield from array()


def trends(level: str) -> Iterator[Problem]:
    """Enough rows, with scores of some size, for a trend to stand out."""
    for dtype in DTYPES:
        yield Problem(q_len=128, k_len=128, head_dim=64, q_heads=4, dtype=dtype, scores=2.0, seed=1)
    if level == "full":
        for dtype in DTYPES:
            yield Problem(q_len=64, k_len=512, head_dim=80, q_heads=4, dtype=dtype, scores=4.0, seed=2)


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
