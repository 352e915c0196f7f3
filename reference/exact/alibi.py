"""ALiBi in exact arithmetic: its slopes correctly rounded, and its bias.

A kernel is given slopes as numbers, so the truth of a call is the exact attention under the exact bias, slope times
distance. Float64 holds it for slopes of float32 (24 bits) and distances below 2^29; dyadic numbers hold it always, and
its sum with another bias.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from flint import arb, fmpz_mat
from numpy.typing import NDArray

from attnspec.reference.exact.dyadic import DyadicMatrix
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


def distance(
    q_len: int, k_len: int, form: str, alignment: str, key_lengths: NDArray[np.integer] | None
) -> NDArray[np.int64]:
    """Return how far each key lies from the diagonal, (batch or 1, 1, q_len, k_len). Raises InputError for an unknown
    form or alignment. Rules `alibi.form`, `alibi.offset`."""
    if form not in ("symmetric", "signed") or alignment not in ("upper_left", "lower_right"):
        right = "symmetric or signed, upper_left or lower_right"
        raise InputError(f"alibi has form {form!r} at {alignment!r}: use {right}")
    ends = np.array([k_len]) if key_lengths is None else key_lengths.astype(np.int64)
    offsets = np.zeros_like(ends) if alignment == "upper_left" else ends - q_len
    rows = np.arange(q_len)[:, None] + offsets[:, None, None, None]
    signed: NDArray[np.int64] = rows - np.arange(k_len)
    return np.abs(signed) if form == "symmetric" else signed


def exact_bias(slope: float, distances: NDArray[np.integer]) -> DyadicMatrix:
    """Return minus slope times distance of one head, (q_len, k_len), for any finite slope. Rule `alibi.bias`."""
    numerator, denominator = float(slope).as_integer_ratio()  # a power of two
    rows, columns = distances.shape
    products = [-numerator * far for far in distances.ravel().tolist()]
    return DyadicMatrix(fmpz_mat(rows, columns, products), 1 - denominator.bit_length())


def _power_of_two(exponent: Fraction, fmt: Format) -> float:
    """Return 2^exponent, rounded to `fmt`."""
    if exponent.denominator == 1:
        return round_to(Fraction(2) ** exponent.numerator, fmt)
    return until_decided(
        lambda: round_ball((arb(2).log() * exponent.numerator / exponent.denominator).exp(), fmt),
        first_precision(fmt, 1),
        f"2^({exponent})",
    )
