"""The exact oracle's roundings against the machine's own, at ties and at the edges of a format."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from exact_calls import (
    HALF_ULP,
    ULP,
)
from flint import arb

from attnspec.reference.exact import precision, round_ball, round_near, round_to
from attnspec.spec.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FORMATS, Format


@pytest.mark.parametrize(("fmt", "dtype"), [(FLOAT16, np.float16), (FLOAT32, np.float32)])
def test_rounding_agrees_with_numpy_casts(fmt: Format, dtype: type[np.floating]) -> None:
    source = random.Random(0)
    spread = fmt.precision + 4
    xs = [
        source.uniform(-1, 1) * 2.0 ** source.randint(fmt.emin - spread, fmt.emax + 3) for _ in range(4000)
    ]  # subnormals and overflow included
    with np.errstate(over="ignore"):
        assert [round_to(Fraction(x), fmt) for x in xs] == [float(np.float64(x).astype(dtype)) for x in xs]


def test_rounding_of_ties_agrees_with_numpy_casts() -> None:
    halves = np.arange(0, 2**16 - 1, 5, dtype=np.uint16).view(np.float16)
    steps = [float(x) for x in halves if np.isfinite(x)]
    ties = [(a + float(np.nextafter(np.float16(a), np.float16(np.inf)))) / 2 for a in steps]
    with np.errstate(over="ignore"):
        finite = [x for x in ties if math.isfinite(x)]
        assert [round_to(Fraction(x), FLOAT16) for x in finite] == [float(np.float16(x)) for x in finite]


def test_rounding_to_float64_agrees_with_python_division() -> None:
    source = random.Random(1)
    for _ in range(4000):
        n, d = source.getrandbits(source.randint(1, 1300)) or 1, source.getrandbits(source.randint(1, 1300)) or 1
        x = Fraction(n if source.random() < 0.5 else -n, d)
        try:
            expected = float(x)
        except OverflowError:
            expected = math.inf if x > 0 else -math.inf
        assert round_to(x, FLOAT64) == expected


def test_rounding_to_bfloat16_rounds_once() -> None:
    assert round_to(1 + Fraction(2) ** -8 + Fraction(2) ** -30, BFLOAT16) == 1 + 2.0**-7
    assert round_to(1 + Fraction(2) ** -8, BFLOAT16) == 1.0
    assert round_to(1 + Fraction(2) ** -8 - Fraction(2) ** -2000, BFLOAT16) == 1.0
    assert round_to(1 + 3 * Fraction(2) ** -8, BFLOAT16) == 1 + 2.0**-6


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_rounding_at_the_edges_of_a_format(fmt: Format) -> None:
    largest, smallest = Fraction(fmt.largest), Fraction(2) ** (fmt.emin - fmt.precision + 1)
    beyond = largest + Fraction(2) ** (fmt.emax - fmt.precision)  # the midpoint between the largest and 2^(emax + 1)
    assert round_to(beyond, fmt) == math.inf
    assert round_to(-beyond, fmt) == -math.inf
    assert round_to(beyond, fmt, nudge=-1) == fmt.largest
    assert round_to(-beyond, fmt, nudge=1) == -fmt.largest
    assert round_to(smallest / 2, fmt) == 0.0
    assert round_to(smallest / 2, fmt, nudge=1) == smallest
    assert round_to(-smallest / 2, fmt, nudge=-1) == -smallest
    assert round_to(smallest * Fraction(3, 2), fmt) == 2 * smallest
    assert [math.copysign(1, round_to(-smallest / n, fmt)) for n in (2, 4)] == [1.0, 1.0]


def test_a_nudge_settles_ties_and_nothing_else() -> None:
    tie = 1 + Fraction(HALF_ULP)
    assert [round_to(tie, FLOAT64, nudge) for nudge in (-1, 0, 1)] == [1.0, 1.0, 1 + ULP]
    assert [round_to(Fraction(1), FLOAT64, nudge) for nudge in (-1, 0, 1)] == [1.0, 1.0, 1.0]


def test_a_ball_is_rounded_only_where_its_ends_agree() -> None:
    with precision.working_precision(128):
        assert round_ball(arb(1, 2.0**-60), FLOAT64) == 1.0
        assert round_ball(arb(1, 2.0**-50), FLOAT64) is None
        assert round_ball(arb(1) + arb(HALF_ULP, 2.0**-90), FLOAT64) is None
    assert round_ball(arb(0, 2.0**-1080), FLOAT64) == 0.0
    assert round_ball(arb("nan"), FLOAT64) is None
    assert round_ball(arb("inf"), FLOAT64) is None
    assert round_ball(arb(3), FLOAT64, exponent=-(10**40)) == 0.0
    assert round_ball(arb(-3), FLOAT64, exponent=10**40) == -math.inf


def test_an_offset_of_any_size_decides_a_tie() -> None:
    tie = 1 + Fraction(HALF_ULP)
    for gap in (40, 200, 10**5, 10**15):
        assert round_near(tie, (-arb(gap)).exp(), FLOAT64) == 1 + ULP
        assert round_near(tie, -((-arb(gap)).exp()), FLOAT64) == 1.0
    assert round_near(tie, arb(0, 2.0**-200), FLOAT64) is None
    assert round_near(Fraction(1), arb(0, 2.0**-200), FLOAT64) == 1.0
    assert round_near(tie, arb(10) ** 9999, FLOAT64) is None
