"""Calls with ALiBi."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from attnspec.conformance.problems.sizes import CORNERS, DTYPES
from attnspec.spec.alibi import ALIBI_FORMS, SLOPE_SHAPES, Alibi
from attnspec.spec.problem import Mask, Problem
from attnspec.spec.window import Window

PLACES = tuple(product(ALIBI_FORMS, CORNERS))
OTHER = dict(zip(CORNERS, CORNERS[::-1], strict=True))  # the corner that a mixed dialect has beside each


def mixed(base: Problem) -> Iterator[Problem]:
    """A problem with ALiBi of both forms from each corner, with the causal triangle at the other."""
    assert base.alibi is not None, "a problem with ALiBi"
    for form, corner in PLACES:
        yield base.but(alibi=base.alibi._replace(form=form, corner=corner), causal=OTHER[corner])


def calls(level: str) -> Iterator[Problem]:
    """Both forms at both corners, causal or not, and apart from causal triangle and window; more keys than queries and
    fewer, beside every other option."""
    base = Problem(q_len=33, k_len=70, head_dim=64, batch=2, q_heads=4, alibi=Alibi(), seed=1)
    for form, corner in PLACES:
        at = base.but(alibi=Alibi(form, corner))
        yield at
        yield at.but(q_len=70, k_len=33, kv_heads=2)
        yield at.but(causal=corner, dtype="bfloat16")
        yield at.but(mask=Mask("bool", "b11k", "padding"), q_len=1, k_len=300)
        yield at.but(q_len=5, batch=3, key_lengths="zero")
        yield base.but(alibi=Alibi(form, corner), window=Window(8, 3, OTHER[corner]))
    yield from mixed(base)
    yield from mixed(base.but(q_len=70, k_len=33, kv_heads=2))
    yield from mixed(base.but(q_len=5, batch=3, key_lengths="ragged"))
    yield base.but(alibi=Alibi(shape="bh"))
    for dtype in DTYPES[1:]:
        yield base.but(dtype=dtype)
        yield base.but(dtype=dtype, q_heads=2, batch=1, q_len=16, k_len=1024)  # distances that 8 bits do not hold
    yield base.but(mask=Mask("float", "bhqk", "random"))
    yield base.but(mask=Mask("bool", "bhqk", "empty_rows"), q_heads=6, kv_heads=1)
    yield base.but(scale=-0.7, value_dim=24)
    yield base.but(window=Window(8, 3))
    yield base.but(sinks="normal")
    yield base.but(q_heads=1, batch=1, q_len=4, k_len=3000)
    if level == "full":
        for dtype, (form, corner), (q_len, k_len) in product(DTYPES, PLACES, ((17, 129), (130, 64), (4, 2048))):
            yield base.but(dtype=dtype, alibi=Alibi(form, corner), q_len=q_len, k_len=k_len)


def backwards(level: str) -> Iterator[Problem]:
    """The backward pass with ALiBi, with and without a gradient of the slopes and of a bias."""
    base = Problem(q_len=33, k_len=70, head_dim=64, q_heads=2, alibi=Alibi(), grad="output", seed=1)
    for dtype in DTYPES:
        yield base.but(dtype=dtype)
    for form, corner in PLACES:
        yield base.but(alibi=Alibi(form, corner), grad="lse")
        yield base.but(alibi=Alibi(form, corner), causal=corner, batch=2, q_heads=6, kv_heads=2)
    yield base.but(mask=Mask("bool", "bhqk", "empty_rows"), batch=2)
    yield base.but(mask=Mask("float", "bhqk", "random"), batch=2)
    yield base.but(mask=Mask("float", "11qk", "bias"), batch=2, grad="lse")
    yield from mixed(base)
    learned = base.but(alibi=Alibi(learned=True), batch=2, grad="lse")
    for dtype in DTYPES[1:]:
        yield learned.but(dtype=dtype)
    for (form, corner), shape in product(PLACES, SLOPE_SHAPES):
        at = learned.but(alibi=Alibi(form, corner, shape, True))
        yield at
        yield at.but(q_heads=6, kv_heads=2) if shape == "bh" else at.but(q_len=130, k_len=33)
    yield from mixed(learned.but(q_len=70, k_len=33))
    yield learned.but(q_heads=6, kv_heads=2, causal="upper_left", grad="output")
    yield learned.but(mask=Mask("float", "1hqk", "random"))
    yield learned.but(mask=Mask("bool", "bhqk", "empty_rows"), window=Window(8, 3))
    yield learned.but(sinks="normal", softcap=2.0)
    yield learned.but(key_lengths="ragged", batch=3, q_len=5)
    yield learned.but(q_heads=1, q_len=5, k_len=2100, head_dim=16)
    if level == "full":
        for dtype, (form, corner) in product(DTYPES, PLACES):
            yield base.but(dtype=dtype, alibi=Alibi(form, corner), batch=2, q_len=64, k_len=257)


def plain(level: str) -> Iterator[Problem]:
    """A few calls with ALiBi, for what a law says of them."""
    base = Problem(q_len=13, k_len=29, head_dim=32, batch=3, q_heads=4, alibi=Alibi(), seed=1)
    for form, corner in PLACES:
        yield base.but(alibi=Alibi(form, corner))
        yield base.but(alibi=Alibi(form, corner), kv_heads=2, causal=corner, dtype="bfloat16", q_len=29)
    yield from mixed(base)
    if level == "full":
        for dtype, k_len in product(DTYPES, (1, 64, 129)):
            yield base.but(dtype=dtype, k_len=k_len)


def refusable(level: str) -> Iterator[Problem]:
    """A call with ALiBi, to be made impossible."""
    for corner in CORNERS:
        yield Problem(q_len=5, k_len=9, head_dim=16, batch=2, q_heads=6, kv_heads=3, alibi=Alibi("symmetric", corner))
