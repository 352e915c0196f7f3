"""One head of latent attention, exactly: scores, values, and what its rows add to the gradients (chapter "latent")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from flint import arb_mat, fmpq, fmpq_mat, fmpz
from numpy.typing import NDArray

from attnspec.reference.exact.dyadic import DyadicMatrix, dyadic_matrix
from attnspec.reference.exact.gradient_ties import Addend, factor_ball
from attnspec.reference.exact.head_gradient import RowGradients, exact, rational_matrix
from attnspec.reference.exact.scale import Scale
from attnspec.reference.exact.scores import Scores

Array = NDArray[np.float64]
Table = list[list[fmpq]]


@dataclass(frozen=True)
class LatentHead:
    """What one head sees, finite: nope (q_len, nope_dim) and rope (q_len, rope_dim), the parts of its query; latent
    (k_len, kv_rank) and key_rope (k_len, rope_dim), 0 where no row sees the token; up_k (nope_dim, kv_rank) and up_v
    (value_dim, kv_rank); visible (q_len, k_len)."""

    nope: Array
    rope: Array
    latent: Array
    key_rope: Array
    up_k: Array
    up_v: Array
    visible: NDArray[np.bool_]
    scale: Scale

    @cached_property
    def keys(self) -> DyadicMatrix:
        """W^UK c, the part of the keys that is not rotated, (k_len, nope_dim)."""
        return dyadic_matrix(self.latent).times_transposed(dyadic_matrix(self.up_k))

    @cached_property
    def values(self) -> DyadicMatrix:
        """W^UV c, (k_len, value_dim)."""
        return dyadic_matrix(self.latent).times_transposed(dyadic_matrix(self.up_v))

    @cached_property
    def scores(self) -> Scores:
        """scale * (q_nope . W^UK c + q_rope . kr), (q_len, k_len)."""
        of_nope = dyadic_matrix(self.nope).times_transposed(self.keys)
        of_rope = dyadic_matrix(self.rope).times_transposed(dyadic_matrix(self.key_rope))
        total = of_nope.plus(of_rope)
        scaled = total.integers * self.scale.rational.numerator
        zero, rational = fmpz(0), self.scale.radicand == 1
        rows = [[(zero, x) if rational else (x, zero) for x in row] for row in scaled.table()]
        return Scores(rows, Fraction(2) ** total.exponent / self.scale.rational.denominator, self.scale.radicand)


@dataclass(frozen=True)
class LatentHeadGradient(RowGradients):
    """The head with grad_output (q_len, value_dim) and grad_lse (q_len,), finite, and 0 in rows that see no key.

    A gradient is the scale times what the gradients of the scores add, and what the weights add: `balls` of all
    entries, `to_...` the addends of the rows to one. dropped: none, since latent attention has no dropout here.
    """

    head: LatentHead
    grad_output: Array
    grad_lse: Array
    dropped: fmpq_mat | None = None

    @property
    def visible(self) -> NDArray[np.bool_]:
        """Which keys each row sees."""
        return self.head.visible

    @property
    def scores(self) -> Scores:
        """The exact scores."""
        return self.head.scores

    @cached_property
    def products(self) -> Table:
        """a_ij = do_i . W^UV c_j."""
        return rational_matrix(dyadic_matrix(self.grad_output).times_transposed(self.head.values)).table()

    @cached_property
    def keys(self) -> fmpq_mat:
        """[W^UK c, kr], (k_len, nope_dim + rope_dim)."""
        nope, rope = rational_matrix(self.head.keys), _rational(self.head.key_rope)
        return fmpq_mat([a + b for a, b in zip(nope.table(), rope.table(), strict=True)])

    @cached_property
    def queries(self) -> fmpq_mat:
        """q_nope W^UK, what a score's gradient adds to that of the token, (q_len, kv_rank)."""
        up = dyadic_matrix(self.head.up_k.T)
        return rational_matrix(dyadic_matrix(self.head.nope).times_transposed(up))

    @cached_property
    def returned(self) -> fmpq_mat:
        """do W^UV, what a weight adds to the gradient of the token, (q_len, kv_rank)."""
        up = dyadic_matrix(self.head.up_v.T)
        return rational_matrix(dyadic_matrix(self.grad_output).times_transposed(up))

    def balls(self) -> dict[str, arb_mat]:
        """Return the gradients that this head gives to its query (q_len, head_dim), latent (k_len, kv_rank), key_rope
        (k_len, rope_dim), w_uk (nope_dim, kv_rank) and w_uv (value_dim, kv_rank), as balls of the working precision."""
        weights, _, grad_scores = self.weights_and_grad_scores()
        factor, latent = factor_ball(self.head.scale), arb_mat(_rational(self.head.latent))
        back = grad_scores.transpose()
        of_scores = back * arb_mat(self.queries) * factor
        return {
            "query": grad_scores * arb_mat(self.keys) * factor,
            "latent": of_scores + weights.transpose() * arb_mat(self.returned),
            "key_rope": back * arb_mat(_rational(self.head.rope)) * factor,
            "w_uk": (back * arb_mat(_rational(self.head.nope))).transpose() * latent * factor,
            "w_uv": (weights.transpose() * arb_mat(_rational(self.grad_output))).transpose() * latent,
        }

    def readers(self, key: int) -> list[int]:
        """Return the rows that see a key."""
        return np.flatnonzero(self.visible[:, key]).tolist()

    def seeing(self) -> Iterator[int]:
        """Yield the rows that see a key at all."""
        yield from (row for row, keys in enumerate(self.keys_of_row) if keys)

    def to_query(self, row: int, column: int) -> list[Addend]:
        """Return what the scores of a row add to its query, over the scale."""
        keys = self.keys_of_row[row]
        return [self.of_scores(row, {j: self.keys[j, column] for j in keys})] if keys else []

    def to_latent(self, key: int, column: int) -> tuple[list[Addend], list[Addend]]:
        """Return what the scores, over the scale, and what the weights of the rows add to the vector of a token."""
        rows = self.readers(key)
        of_scores = [self.of_scores(row, {key: self.queries[row, column]}) for row in rows]
        return of_scores, [self.of_weights(row, {key: self.returned[row, column]}) for row in rows]

    def to_key_rope(self, key: int, column: int) -> list[Addend]:
        """Return what the scores of the rows add to the rotated key of a token, over the scale."""
        return [self.of_scores(row, {key: exact(self.head.rope[row, column])}) for row in self.readers(key)]

    def to_w_uk(self, out: int, column: int) -> list[Addend]:
        """Return what the scores of the rows add to an element of W^UK, over the scale."""
        return [self.of_scores(row, self._tokens(row, column, self.head.nope[row, out])) for row in self.seeing()]

    def to_w_uv(self, out: int, column: int) -> list[Addend]:
        """Return what the weights of the rows add to an element of W^UV."""
        return [self.of_weights(row, self._tokens(row, column, self.grad_output[row, out])) for row in self.seeing()]

    def _tokens(self, row: int, column: int, factor: float) -> dict[int, fmpq]:
        """Return factor * c_j of the keys that a row sees."""
        return {j: exact(factor) * exact(self.head.latent[j, column]) for j in self.keys_of_row[row]}


def _rational(array: Array) -> fmpq_mat:
    return rational_matrix(dyadic_matrix(array))
