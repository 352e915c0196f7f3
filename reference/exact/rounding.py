"""One rounding to nearest, ties to even, of an exact number or of every number in a ball."""

from __future__ import annotations

import math
from fractions import Fraction

from flint import arb

from attnspec.spec.dtypes import Format

NEGLIGIBLE_EXPONENT = -8192
"""Offsets below 2^this are replaced by their sign.

Means and scores of float64 numbers have denominators below 2^4400 (a score: 3 * 1074 binary places and a root of the
head dimension), so unless they are on a rounding boundary they are farther from it than this.
"""


def round_to(x: Fraction, fmt: Format, nudge: int = 0) -> float:
    """Round the exact number x once to `fmt`, to nearest, ties to even (IEEE 754-2019, 4.3.1).

    x: any rational. nudge: the sign of an infinitesimal added to x; it settles a tie and does nothing else. Returns
    the rounded number as a float, which holds every format exactly: subnormals included, inf beyond the largest
    number, and +0 for every zero.
    """
    return _round_scaled(x.numerator, x.denominator, 0, fmt, nudge)


def round_ball(ball: arb, fmt: Format, exponent: int = 0) -> float | None:
    """Return the number of `fmt` that every point of ball * 2^exponent rounds to, or None where they differ.

    Rounding is monotone, so the two ends speak for the points between them. The ends are taken outwards at the working
    precision, which should exceed that of `fmt`.
    """
    if not ball.is_finite():
        return None
    (mantissa, power), (mantissa_above, power_above) = dyadic(ball.lower()), dyadic(ball.upper())
    low = _round_scaled(mantissa, 1, power + exponent, fmt)
    high = _round_scaled(mantissa_above, 1, power_above + exponent, fmt)
    return low if low == high else None


def round_near(base: Fraction, offset: arb, fmt: Format) -> float | None:
    """Return the number of `fmt` that every point of base + offset rounds to, or None where they differ.

    The offset may be far smaller than any working precision could resolve next to the base: what decides a tie is its
    sign. An offset whose sign is unknown is undecided unless it is harmless.
    """
    if not offset.is_finite():
        return None
    low = _round_beside(base, offset.lower(), fmt, outward=-1)
    high = _round_beside(base, offset.upper(), fmt, outward=1)
    return low if low == high else None


def dyadic(point: arb) -> tuple[int, int]:
    """Return (mantissa, exponent) of an exact ball: its value is mantissa * 2^exponent."""
    mantissa, exponent = point.man_exp()
    return int(mantissa), int(exponent)


def _round_beside(base: Fraction, end: arb, fmt: Format, outward: int) -> float:
    """Round base + end, one end of an interval; where that is costly, a point farther out (-1 down, +1 up)."""
    mantissa, exponent = dyadic(end)
    magnitude = exponent + mantissa.bit_length()  # abs(end) < 2^magnitude
    if mantissa and magnitude > -NEGLIGIBLE_EXPONENT:
        return outward * math.inf  # a ball this wide says nothing yet
    sign = (mantissa > 0) - (mantissa < 0)
    if magnitude > NEGLIGIBLE_EXPONENT or sign == 0:
        return round_to(base + Fraction(mantissa) * Fraction(2) ** exponent, fmt)
    if sign == outward:
        return round_to(base + sign * Fraction(2) ** NEGLIGIBLE_EXPONENT, fmt)
    return round_to(base, fmt, nudge=sign)


def _round_scaled(numerator: int, denominator: int, exponent: int, fmt: Format, nudge: int = 0) -> float:
    """Round numerator / denominator * 2^exponent; the exponent may be too large for the number to be written out."""
    if numerator == 0:
        return 0.0
    sign = 1 if numerator > 0 else -1
    magnitude = abs(numerator)
    leading = magnitude.bit_length() - denominator.bit_length()
    if magnitude << max(-leading, 0) < denominator << max(leading, 0):
        leading -= 1
    leading += exponent  # 2^leading <= abs(x) < 2^(leading + 1)
    if leading > fmt.emax:
        return sign * math.inf
    if leading < fmt.emin - fmt.precision:
        return 0.0  # below half of the smallest subnormal
    last_place = max(leading, fmt.emin) - fmt.precision + 1
    shift = exponent - last_place
    divisor = denominator << max(-shift, 0)
    quotient, remainder = divmod(magnitude << max(shift, 0), divisor)
    beyond_half = 2 * remainder - divisor
    if beyond_half > 0 or (beyond_half == 0 and (sign * nudge > 0 or (nudge == 0 and quotient & 1))):
        quotient += 1
    if leading == fmt.emax and quotient >> fmt.precision:
        return sign * math.inf
    return sign * math.ldexp(quotient, last_place) + 0.0  # + 0.0 turns -0 into +0
