"""Calls of the exact oracle that its tests share, and exact values of mpmath's numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from attnspec.reference.exact import ExactResult, attention

Array = NDArray[np.float64]

ULP = 2.0**-52
HALF_ULP = 2.0**-53
DIGITS = 60
EMPTY_ROW = (0.0, -math.inf)


def one_query(scores: list[float], values: list[float], **options: Any) -> tuple[float, float]:
    """Return (output, lse) of one query whose keys have these scores (times the scale, 1 unless given)."""
    key = np.array(scores, dtype=np.float64).reshape(1, 1, -1, 1)
    value = np.array(values, dtype=np.float64).reshape(1, 1, -1, 1)
    result = attention(np.ones((1, 1, 1, 1)), key, value, **({"scale": 1.0} | options))
    return float(result.output[0, 0, 0, 0]), float(result.lse[0, 0, 0])


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Return normal float64 arrays of a generator with a fixed stream."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.standard_normal(shape) for shape in shapes]


def assert_same(left: ExactResult, right: ExactResult) -> None:
    """Compare results bit for bit."""
    __tracebackhide__ = True
    assert left.output.tobytes() == right.output.tobytes()
    assert left.lse.tobytes() == right.lse.tobytes()


def fraction_of(x: mpmath.mpf) -> Fraction:
    """Return the exact value of an mpmath number."""
    sign, mantissa, exponent, _ = x._mpf_
    magnitude = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude


def exact_products(row: Array, keys: Array) -> list[mpmath.mpf]:
    """Return q.k for one query (head_dim,) and keys (k_len, head_dim), at mpmath's working precision."""
    return [
        mpmath.fsum(mpmath.mpf(a) * mpmath.mpf(b) for a, b in zip(row.tolist(), k.tolist(), strict=True)) for k in keys
    ]
