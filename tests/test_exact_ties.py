"""The exact oracle decides ties: vanishing weights, scores that cancel, a cap on the precision."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from exact_calls import (
    HALF_ULP,
    ULP,
    one_query,
)
from flint import ctx

from attnspec.reference.exact import UndecidedError, attention, precision


def test_a_rational_tie_under_an_irrational_scale() -> None:
    query = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    key = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]).reshape(1, 1, 4, 2)
    value = np.array([[1, 1 + ULP, 1], [1 + ULP, 1 + 2 * ULP, -1]] * 2).reshape(1, 1, 4, 3)
    output = attention(query, key, value).output.ravel().tolist()  # both groups have the same mean, on a midpoint
    assert output == [1.0, 1 + 2 * ULP, 0.0]
    assert math.copysign(1, output[2]) == 1.0


@pytest.mark.parametrize("gap", [70.0, 200.0, 1e4, 1e5, 1e15, 1e300])
@pytest.mark.parametrize("scale", [1.0, None])
def test_a_vanishing_weight_decides_the_direction_of_a_tie(gap: float, scale: float | None) -> None:
    query = np.array([1.0, 0.0, 0.0]).reshape(1, 1, 1, 3)
    key = np.array([0.0, 0.0, -gap])[:, None] * np.eye(1, 3)
    value = np.array([[1.0, 1.0, 1.0], [1 + ULP, 1 + ULP, 1 + ULP], [2.0, 0.0, 1 + ULP]])
    for order in ([0, 1, 2], [2, 1, 0]):
        keys, values = key[order][None, None], value[order][None, None]
        assert attention(query, keys, values, scale=scale).output.ravel().tolist() == [1 + ULP, 1.0, 1 + ULP]


@pytest.mark.parametrize(("product", "bias"), [(3e5, -4e5), (-3e5, 1e5), (-3e5, -1e5), (0.0, -1e5)])
def test_a_vanishing_weight_of_product_and_bias_decides_a_tie(product: float, bias: float) -> None:
    query = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
    key = np.array([[product, 0.0], [0.0, 0.0], [0.0, 0.0]]).reshape(1, 1, 3, 2)
    value = np.array([2.0, 1.0, 1 + ULP]).reshape(1, 1, 3, 1)
    assert attention(query, key, value, attn_mask=np.array([bias, 0.0, 0.0])).output.item() == 1 + ULP


def test_a_vanishing_weight_lifts_half_of_the_smallest_subnormal() -> None:
    assert one_query([0.0, 0.0, -1e5], [0.0, 5e-324, 0.0])[0] == 0.0
    assert one_query([0.0, 0.0, -1e5], [0.0, 5e-324, 1.0])[0] == 5e-324
    assert one_query([0.0, 0.0, -1e5], [0.0, -5e-324, -1.0])[0] == -5e-324


def test_a_vanishing_pull_that_cancels_leaves_the_tie() -> None:
    scores = [0.0, 0.0, -1e4, -1e4]
    assert one_query(scores, [1.0, 1 + ULP, 0.5, 1.5 + ULP])[0] == 1.0  # both groups have mean 1 + HALF_ULP
    assert one_query([*scores, -1e5], [1.0, 1 + ULP, 0.5, 1.5 + ULP, 2.0])[0] == 1 + ULP


@pytest.mark.parametrize("gap", [50.0, 200.0, 1e5, 1e300])
def test_a_vanishing_weight_lifts_the_lse_off_a_tie(gap: float) -> None:
    query = np.array([1.0, HALF_ULP, 0.0]).reshape(1, 1, 1, 3)
    key = np.array([[1.0, 1.0, 0.0], [-gap, 0.0, 0.0]]).reshape(1, 1, 2, 3)  # scores 1 + HALF_ULP and -gap
    value = np.ones((1, 1, 2, 1))
    assert attention(query, key[:, :, :1], value[:, :, :1], scale=1.0).lse.item() == 1.0
    assert attention(query, key, value, scale=1.0).lse.item() == 1 + ULP


def test_almost_equal_scores_need_more_precision() -> None:
    assert one_query([0.0, 2.0**-200], [1.0, 1 + ULP])[0] == 1 + ULP
    assert one_query([0.0, -(2.0**-1000)], [1.0, 1 + ULP])[0] == 1.0


def test_large_scores_that_cancel_with_the_bias() -> None:
    query, value = np.full((1, 1, 1, 2), 1e150), np.array([1.0, 3.0]).reshape(1, 1, 2, 1)
    key = np.array([[1e150, 0.0], [0.0, 1e150]]).reshape(1, 1, 2, 2)
    assert attention(query, key, value).output.item() == 2.0
    product = Fraction(1e150) ** 2  # score product / sqrt(2): a bias within 1 ulp of it leaves a gap of 1e284
    with mpmath.workdps(400):
        bias = np.array([0.0, float(mpmath.mpf(product.numerator) / mpmath.sqrt(2))])
        lower = mpmath.mpf(bias[1]) < mpmath.mpf(product.numerator) / mpmath.sqrt(2)
    key[0, 0, 1] = 0.0
    assert attention(query, key, value, attn_mask=bias).output.item() == (1.0 if lower else 3.0)


def test_the_cap_fails_loudly_and_restores_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PRECISION_CAP", 128)
    message = "output of batch 0, head 0, row 0, column 0: not decided at 128 bits"
    with precision.working_precision(77):
        with pytest.raises(UndecidedError, match=message):
            one_query([0.0, 2.0**-200], [1.0, 1 + ULP])
        assert ctx.prec == 77
