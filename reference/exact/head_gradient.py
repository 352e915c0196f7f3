"""The weights of one head and the gradients of its scores: in balls, and as exact addends to one entry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flint import arb, arb_mat, fmpq, fmpq_mat
from numpy.typing import NDArray

from attnspec.reference.exact.capped import CappedScores
from attnspec.reference.exact.dyadic import DyadicMatrix, dyadic_matrix
from attnspec.reference.exact.gradient_ties import Addend, Gap
from attnspec.reference.exact.head import HeadInput, scores_of
from attnspec.reference.exact.scale import Scale
from attnspec.reference.exact.scores import HeadScores, Scores
from attnspec.reference.exact.ties import groups_of_row

Balls = NDArray[np.object_]
"""An array of balls."""


class RowGradients(ABC):
    """The rows of one query head, with what comes into them, and what they add to the gradients of its inputs.

    grad_lse: (q_len,), finite, and 0 in rows that see no key. dropped: D_ij, what dropout multiplies each weight by,
    (q_len, k_len); None for 1 everywhere.
    """

    grad_lse: NDArray[np.float64]
    dropped: fmpq_mat | None

    @property
    @abstractmethod
    def visible(self) -> NDArray[np.bool_]:
        """Which keys each row sees, (q_len, k_len)."""

    @property
    @abstractmethod
    def scores(self) -> HeadScores:
        """The exact scores."""

    @property
    @abstractmethod
    def products(self) -> list[list[fmpq]]:
        """a_ij = D_ij do_i . v_j, the gradient of weight j of row i, exact."""

    @cached_property
    def keys_of_row(self) -> list[list[int]]:
        """The visible keys of each row."""
        return [np.flatnonzero(row).tolist() for row in self.visible]

    @cached_property
    def groups_of_row(self) -> list[dict[Gap, list[int]]]:
        """The visible keys of each row by their gap to the row's largest score."""
        return [self._groups(row, keys) if keys else {} for row, keys in enumerate(self.keys_of_row)]

    def weights_and_grad_scores(self) -> tuple[arb_mat, arb_mat, arb_mat]:
        """Return D_ij p_ij, ds_ij = p_ij (a_ij - delta_i + dlse_i) and what it is before the cap, ds_ij (1 - tanh^2),
        each (q_len, k_len), as balls of the working precision.

        Both a_ij and delta_i are taken relative to the key t of the largest score,
        ds_ij = p_ij ((a_ij - a_it + dlse_i) - sum_l p_il (a_il - a_it)),
        so that a small ds_ij is as accurate as a large one; hidden slots are exactly 0.
        """
        q_len, k_len = self.visible.shape
        weights, grad_scores, grad_scaled = (arb_mat(q_len, k_len) for _ in range(3))
        for i, keys in enumerate(self.keys_of_row):
            if not keys:
                continue
            seen = [self.scores.rows[i][j] for j in keys]
            largest = self.scores.largest(seen)
            exponentials = [gap.exp() for gap in self.scores.balls(seen, origin=largest)]
            total = sum(exponentials, arb(0))
            top = self.products[i][keys[seen.index(largest)]]
            beyond = [self.products[i][j] - top for j in keys]
            drift = sum((e * a for e, a in zip(exponentials, beyond, strict=True)), arb(0)) / total
            grad_lse = exact(self.grad_lse[i])
            slopes = self.scores.slopes(seen) if isinstance(self.scores, CappedScores) else [arb(1)] * len(seen)
            for j, exponential, a, slope in zip(keys, exponentials, beyond, slopes, strict=True):
                weights[i, j] = exponential / total
                grad_scores[i, j] = weights[i, j] * (a + grad_lse - drift)
                grad_scaled[i, j] = grad_scores[i, j] * slope
                if self.dropped is not None:
                    weights[i, j] *= self.dropped[i, j]
        return weights, grad_scores, grad_scaled

    def of_scores(self, row: int, multipliers: Mapping[int, fmpq]) -> Addend:
        """Return sum_j c_j ds_j over the visible keys of a row that sees one."""
        products, grad_lse = self.products[row], exact(self.grad_lse[row])
        direct = {j: c * (products[j] + grad_lse) for j, c in multipliers.items()}
        return Addend(self.groups_of_row[row], direct, multipliers, products)

    def of_weights(self, row: int, multipliers: Mapping[int, fmpq]) -> Addend:
        """Return sum_j x_j D_j p_j over the visible keys of a row that sees one."""
        if self.dropped is not None:
            multipliers = {j: x * self.dropped[row, j] for j, x in multipliers.items()}
        return Addend(self.groups_of_row[row], multipliers, {}, self.products[row])

    def _groups(self, row: int, keys: list[int]) -> dict[Gap, list[int]]:
        assert isinstance(self.scores, Scores), "no theorem for capped scores"
        groups = groups_of_row(self.scores, row, keys)
        unit = fmpq(self.scores.unit.numerator, self.scores.unit.denominator)
        x, y = groups[0].score
        return {((group.score[0] - x) * unit, (group.score[1] - y) * unit): group.keys for group in groups}


@dataclass(frozen=True)
class HeadGradient(RowGradients):
    """One query head with the gradients that come into it.

    given: what the head sees; grad_output: (q_len, value_dim); grad_lse: (q_len,); both finite, and 0 in rows that see
    no key. dropped: as above.
    """

    given: HeadInput
    grad_output: NDArray[np.float64]
    grad_lse: NDArray[np.float64]
    scale: Scale
    dropped: fmpq_mat | None = None
    softcap: float = 0.0

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Which keys each row sees."""
        return self.given.visible

    @cached_property
    def scores(self) -> HeadScores:
        """The exact scores."""
        return scores_of(self.given, self.scale, self.softcap)

    @cached_property
    def products(self) -> list[list[fmpq]]:
        """a_ij = D_ij do_i . v_j, the gradient of weight j of row i, exact."""
        product = dyadic_matrix(self.grad_output).times_transposed(dyadic_matrix(self.given.value))
        table: list[list[fmpq]] = rational_matrix(product).table()
        if self.dropped is None:
            return table
        return [[d * a for d, a in zip(*rows, strict=True)] for rows in zip(self.dropped.table(), table, strict=True)]


def exact(x: float) -> fmpq:
    """Return a finite float as the rational number that it is."""
    return fmpq(*float(x).as_integer_ratio())


def rational_matrix(matrix: DyadicMatrix) -> fmpq_mat:
    """Return the matrix as rational numbers."""
    return fmpq_mat(matrix.integers) * fmpq(2) ** matrix.exponent


def ball_matrix(array: NDArray[np.float64]) -> arb_mat:
    """Return a finite float64 array (rows, columns) as balls of no width."""
    rows, columns = array.shape
    return arb_mat(rows, columns, [arb(x) for x in array.ravel().tolist()])


def zeros(shape: tuple[int, ...]) -> Balls:
    """Return balls that are exactly 0."""
    return np.full(shape, arb(0), dtype=np.object_)


def entries(matrix: arb_mat) -> Balls:
    """Return the balls of a matrix, (rows, columns)."""
    return np.array(matrix.entries(), dtype=np.object_).reshape(matrix.nrows(), matrix.ncols())
