"""Entries of exact gradients that no ball decides: zeros, ties, and where the argument ends."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from flint import fmpq
from numpy.typing import NDArray

from attnspec.reference.exact import UndecidedError, precision
from attnspec.reference.exact.backward import ExactGradients, backward
from attnspec.reference.exact.gradient_ties import ZERO, Addend, settle
from attnspec.reference.exact.scale import Scale
from attnspec.spec.dtypes import BFLOAT16, FLOAT64

Array = NDArray[np.float64]

HALF_ULP, ULP = 2.0**-53, 2.0**-52
DIGITS = 60
NAMES = ("query", "key", "value", "attn_mask")
ONES = [[0.0, -np.inf, -np.inf, -np.inf]] * 2  # two rows that see the first of four keys
TIE = [1.0, HALF_ULP]  # with these gradients of the output they give its value a gradient between two numbers


# ---------------------------------------------------------------- helpers


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Return normal float64 arrays of a generator with a fixed stream."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.standard_normal(shape) for shape in shapes]


def rows_of(scores: list[list[float]], grads: list[float], values: list[float], **options: Any) -> ExactGradients:
    """Return the gradients of rows with these scores, as a bias over q.k = 0; head_dim and value_dim are 1."""
    query, key = np.zeros((1, 1, len(scores), 1)), np.ones((1, 1, len(values), 1))
    value, grad = (np.array(x).reshape(1, 1, -1, 1) for x in (values, grads))
    return backward(query, key, value, grad, attn_mask=np.array(scores), **options)


# ---------------------------------------------------------------- zeros and ties


def test_one_visible_key_gives_exact_zeros_and_the_gradient_itself() -> None:
    query, key, value, grad = draw(5, (1, 1, 3, 3), (1, 1, 3, 3), (1, 1, 3, 2), (1, 1, 3, 2))
    mask = np.where(np.eye(3, dtype=bool), draw(6, (3, 3))[0], -np.inf)
    result = backward(query, key, value, grad, attn_mask=mask)
    assert result.value.tobytes() == grad.tobytes()
    for gradient in (result.query, result.key, result.attn_mask):
        assert gradient is not None
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()  # no -0


def test_equal_values_give_exact_zeros() -> None:
    query, key, grad = draw(7, (1, 1, 4, 3), (1, 1, 5, 3), (1, 1, 4, 2))
    result = backward(query, key, np.full((1, 1, 5, 2), 0.1), grad, attn_mask=np.zeros(5))
    assert [np.count_nonzero(getattr(result, name)) for name in NAMES] == [0, 0, 10, 0]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_constant_feature_of_the_keys_cancels_in_the_query(scale: float | None) -> None:
    query, key, value, grad = draw(8, (1, 1, 3, 3), (1, 1, 5, 3), (1, 1, 5, 2), (1, 1, 3, 2))
    key[..., 1] = 0.1
    result = backward(query, key, value, grad, scale=scale)
    assert result.query[..., 1].tolist() == [[[0.0, 0.0, 0.0]]]


def test_a_bias_constant_along_the_keys_has_the_gradient_of_the_lse() -> None:
    query, key, value, grad, lse = draw(9, (1, 1, 3, 3), (1, 1, 5, 3), (1, 1, 5, 2), (1, 1, 3, 2), (1, 1, 3))
    result = backward(query, key, value, grad, grad_lse=lse, attn_mask=np.zeros((3, 1)))
    assert result.attn_mask is not None
    assert result.attn_mask.ravel().tolist() == lse.ravel().tolist()


def test_rows_of_the_same_weights_cancel_exactly() -> None:
    query, key, value, grad = draw(10, (1, 2, 1, 3), (1, 1, 5, 3), (1, 1, 5, 2), (1, 2, 1, 2))
    query[0, 1], grad[0, 1] = query[0, 0], -grad[0, 0]
    result = backward(query, key, value, grad, enable_gqa=True)
    assert np.count_nonzero(result.key) == np.count_nonzero(result.value) == 0
    assert np.count_nonzero(result.query) == 6


def test_complementary_and_proportional_rows_add_up_to_rational_numbers() -> None:
    mirrored = [[0.0, 1.0], [1.0, 0.0]]  # weights (p, 1 - p) and (1 - p, p)
    assert rows_of(mirrored, [1.0, 1.0], [0.0, 0.0]).value.ravel().tolist() == [1.0, 1.0]
    doubled = [[0.0, 1.0, -np.inf, -np.inf], [0.0, 1.0, 0.0, 1.0]]  # every weight of the second row is half as large
    assert rows_of(doubled + ONES, [1.0, -2.0, *TIE], [0.0] * 4).value.ravel()[0] == 1.0


@pytest.mark.parametrize("gap", [60.0, 1e4, 1e5, 1e300])
def test_a_vanishing_weight_decides_a_tie(gap: float) -> None:
    assert rows_of([[0.0, -gap]] * 2, TIE, [0.0, 0.0]).value.ravel()[0] == 1.0
    assert rows_of([[0.0, -gap]] * 2, [1.0, 3 * HALF_ULP], [0.0, 0.0]).value.ravel()[0] == 1 + ULP
    assert rows_of([[0.0], [0.0]], [1.0, 3 * HALF_ULP], [0.0]).value.item() == 1 + 2 * ULP


def test_a_tie_of_the_scores_gradient_is_decided_by_a_vanishing_weight() -> None:
    scores, lse = [[0.0, -1e5]], np.full((1, 1, 1), 1 + 2.0**-8)
    for values, expected in (([0.0, 0.0], 1.0), ([0.0, -2.0], 1 + 2.0**-7), ([0.0, 1.0], 1.0)):
        result = rows_of(scores, [1.0], values, grad_lse=lse, rounded_to=BFLOAT16)
        assert result.attn_mask is not None
        assert result.attn_mask[0, 0] == expected


def test_saturated_gradients_are_rounded_however_small() -> None:
    result = rows_of([[0.0, -600.0]], [1.0], [0.0, 1.0]).attn_mask
    assert result is not None
    with mpmath.workdps(DIGITS):
        small = mpmath.exp(-600) / (1 + mpmath.exp(-600)) ** 2
        assert result.ravel().tolist() == [-float(small), float(small)]


def test_what_the_argument_does_not_reach_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 / (1 + e) - 1 / (1 + e)^2 - e / (1 + e)^2 = 0, with different denominators, e = exp(-1)
    scores = [[0.0, -1.0, -np.inf, -np.inf], [0.0, -1.0, -1.0, -2.0], [-1.0, 0.0, -1.0, -2.0]]
    monkeypatch.setattr(precision, "PRECISION_CAP", 4096)
    with pytest.raises(UndecidedError, match=r"gradient of value at \(0, 0, 0, 0\): not decided at 4096 bits"):
        rows_of(scores + ONES, [1.0, -1.0, -1.0, *TIE], [0.0] * 4)


def test_a_rational_sum_keeps_an_irrational_factor() -> None:
    addend = Addend({ZERO: [0, 1]}, {0: fmpq(1, 5)}, {}, [fmpq(0), fmpq(0)])  # 1/5 over two keys of one score
    with mpmath.workdps(DIGITS):
        expected = float(1 / (10 * mpmath.sqrt(3)))
    assert settle([addend], Scale(Fraction(1), 3), 3, FLOAT64, 128, "it") == expected
    assert settle([addend], Scale(Fraction(5)), 3, FLOAT64, 128, "it") == 0.5
