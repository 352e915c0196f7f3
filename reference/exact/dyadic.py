"""Matrices of floats as integers times one power of two: the form in which products are exact."""

from __future__ import annotations

from dataclasses import dataclass

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


def dyadic_matrix(array: NDArray[np.float64]) -> DyadicMatrix:
    """Return the exact integers of a finite float64 array (rows, columns), under the largest exponent they share."""
    rows, columns = array.shape
    ratios = [x.as_integer_ratio() for x in array.ravel().tolist()]  # denominators are powers of two
    exponent = -max((denominator.bit_length() - 1 for _, denominator in ratios), default=0)
    flat = [numerator << (-exponent - denominator.bit_length() + 1) for numerator, denominator in ratios]
    return DyadicMatrix(fmpz_mat(rows, columns, flat), exponent)
