"""ALiBi in exact arithmetic: its slopes correctly rounded, and its bias as numbers that float64 holds exactly.

A kernel is given slopes as numbers, so the truth of a call is the exact attention under the exact bias. Slope times
distance fits into float64 without rounding for slopes of float32 (24 bits) and distances below 2^29.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnspec.reference.exact.precision import first_precision, until_decided
from attnspec.reference.exact.rounding import round_ball, round_to
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError


def slopes(heads: int, rounded_to: Format = FLOAT64) -> NDArray[np.float64]:
    """Return the slopes of ALiBi for a number of heads, (heads,), each the real number rounded once to `rounded_to`.

    The exponents are rational: an integer gives a power of two, another an irrational number, which is on no rounding
    boundary. Raises InputError for less than one head. Rule `alibi.slopes`. Source: Press et al. 2022, section 3.
    """
    return np.array([_power_of_two(-exponent, rounded_to) for exponent in exponents(heads)])


def exponents(heads: int) -> list[Fraction]:
    """Return the exponents e_h of the slopes 2^-e_h. Raises InputError for less than one head."""
    if heads < 1:
        raise InputError(f"{heads} heads: use 1 or more")
    if heads & (heads - 1) == 0:
        return [Fraction(8 * h, heads) for h in range(1, heads + 1)]
    below = 1 << (heads.bit_length() - 1)
    return exponents(below) + exponents(2 * below)[::2][: heads - below]


def bias(alibi_slopes: NDArray[np.floating], distances: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return minus slope times distance, (batch, heads, q_len, k_len), exactly: an `attn_mask` of the exact attention.

    alibi_slopes: (heads,) or (batch, heads), finite; distances: (batch or 1, 1, q_len, k_len). Raises InputError for a
    product that float64 does not hold. Rule `alibi.bias`.
    """
    per_head = np.asarray(alibi_slopes, dtype=np.float64).reshape(-1, alibi_slopes.shape[-1], 1, 1)
    rounded = -per_head * distances
    for index in np.ndindex(rounded.shape):
        b, h, i, j = index
        slope = float(per_head[b if len(per_head) > 1 else 0, h, 0, 0])
        far = int(distances[b if len(distances) > 1 else 0, 0, i, j])
        if Fraction(float(rounded[index])) != -Fraction(slope) * far:
            raise InputError(f"slope {slope} times distance {far} is no float64 number: use slopes of float32")
    return rounded + 0.0  # + 0.0 turns -0 into +0


def _power_of_two(exponent: Fraction, fmt: Format) -> float:
    """Return 2^exponent, rounded to `fmt`."""
    if exponent.denominator == 1:
        return round_to(Fraction(2) ** exponent.numerator, fmt)
    return until_decided(
        lambda: round_ball((arb(2).log() * exponent.numerator / exponent.denominator).exp(), fmt),
        first_precision(fmt, 1),
        f"2^({exponent})",
    )
