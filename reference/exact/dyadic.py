"""Matrices of floats as integers times one power of two: the form in which products are exact."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from flint import fmpz_mat
from numpy.typing import NDArray


@dataclass(frozen=True)
class DyadicMatrix:
    """The matrix integers * 2^exponent, with no rounding anywhere."""

    integers: fmpz_mat
    exponent: int

    def times_transposed(self, other: DyadicMatrix) -> DyadicMatrix:
        """Return self times the transpose of other: (rows, inner), (columns, inner) to (rows, columns)."""
        return DyadicMatrix(self.integers * other.integers.transpose(), self.exponent + other.exponent)

    def plus(self, other: DyadicMatrix) -> DyadicMatrix:
        """Return the sum of two matrices of one shape."""
        exponent = min(self.exponent, other.exponent)
        left, right = (x.integers * (1 << (x.exponent - exponent)) for x in (self, other))
        return DyadicMatrix(left + right, exponent)

    def fractions(self) -> list[list[Fraction]]:
        """Return the rows as rational numbers."""
        unit = Fraction(2) ** self.exponent
        return [[int(x) * unit for x in row] for row in self.integers.table()]


def dyadic_matrix(array: NDArray[np.float64]) -> DyadicMatrix:
    """Return the exact integers of a finite float64 array (rows, columns), under the largest exponent they share."""
    rows, columns = array.shape
    ratios = [x.as_integer_ratio() for x in array.ravel().tolist()]  # denominators are powers of two
    exponent = -max((denominator.bit_length() - 1 for _, denominator in ratios), default=0)
    flat = [numerator << (-exponent - denominator.bit_length() + 1) for numerator, denominator in ratios]
    return DyadicMatrix(fmpz_mat(rows, columns, flat), exponent)
