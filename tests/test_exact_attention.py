"""The exact oracle: attention computed by hand, masks, heads and batches, unusable input."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from exact_calls import (
    DIGITS,
    EMPTY_ROW,
    ULP,
    assert_same,
    draw,
    exact_products,
    fraction_of,
    one_query,
)

from attnspec.reference.exact import ExactResult, attention, round_to
from attnspec.spec.dtypes import BFLOAT16, FLOAT16, FLOAT64
from attnspec.spec.errors import InputError

# ---------------------------------------------------------------- cases computed by hand


@pytest.mark.parametrize("x", [0.1, -math.pi, 5e-324, 1.7976931348623157e308, 1e-310])
def test_one_key_gives_its_value(x: float) -> None:
    assert one_query([0.7], [x]) == (x, 0.7)


def test_a_negative_zero_is_stored_as_zero() -> None:
    output, lse = one_query([-0.0], [-0.0])
    assert math.copysign(1, output) == math.copysign(1, lse) == 1.0


def test_two_equal_keys_give_the_mean_with_ties_to_even() -> None:
    assert one_query([0.3, 0.3], [1.0, 2.0])[0] == 1.5
    assert one_query([0.3, 0.3], [1.0, 1 + ULP])[0] == 1.0
    assert one_query([0.3, 0.3], [1 + ULP, 1 + 2 * ULP])[0] == 1 + 2 * ULP
    assert one_query([0.3, 0.3], [0.0, 5e-324])[0] == 0.0
    assert one_query([0.3, 0.3], [1.7976931348623157e308] * 2)[0] == 1.7976931348623157e308


def test_a_bias_of_log_2_doubles_a_weight() -> None:
    mask = np.array([0.0, math.log(2)])
    output, lse = one_query([0.0, 0.0], [3.0, 6.0], attn_mask=mask)
    assert output == pytest.approx(5.0, rel=1e-15)  # math.log(2) is rounded
    assert lse == pytest.approx(math.log(3), rel=1e-15)


def test_lse_of_equal_scores_adds_log_n() -> None:
    assert one_query([0.0] * 3, [1.0] * 3)[1] == math.log(3)
    assert one_query([1.0] * 2, [1.0] * 2)[1] == float(1 + mpmath.log(2))


def test_results_overflow_to_infinity_only_beyond_the_midpoint() -> None:
    assert one_query([0.0], [65520.0], rounded_to=FLOAT16)[0] == math.inf
    assert one_query([0.0], [65519.99], rounded_to=FLOAT16)[0] == 65504.0
    assert one_query([0.0, -1e5], [65520.0, 0.0], rounded_to=FLOAT16)[0] == 65504.0
    assert one_query([1e300], [1.0], scale=1e300)[1] == math.inf


def test_rounding_to_bfloat16_is_direct() -> None:
    assert one_query([0.0], [1 + 2.0**-8 + 2.0**-30], rounded_to=BFLOAT16)[0] == 1 + 2.0**-7


def test_default_scale_is_the_real_number() -> None:
    query, key, value = draw(5, (1, 1, 1, 3), (1, 1, 4, 3), (1, 1, 4, 2))
    result = attention(query, key, value)
    with mpmath.workdps(DIGITS):
        weights = [mpmath.exp(s / mpmath.sqrt(3)) for s in exact_products(query[0, 0, 0], key[0, 0])]
        assert result.lse[0, 0, 0] == round_to(fraction_of(mpmath.log(sum(weights))), FLOAT64)
    rounded = attention(query * 1e9, key, value, scale=1 / math.sqrt(3))
    assert rounded.lse[0, 0, 0] != attention(query * 1e9, key, value).lse[0, 0, 0]


def test_square_head_dim_has_a_rational_scale() -> None:
    query, key, value = draw(6, (1, 1, 3, 4), (1, 1, 5, 4), (1, 1, 5, 2))
    assert_same(attention(query, key, value), attention(query, key, value, scale=0.5))


@pytest.mark.parametrize("dim", [3, 4])
def test_scale_0_is_the_mean(dim: int) -> None:
    query, key, value = draw(7, (1, 1, 2, dim), (1, 1, 4, dim), (1, 1, 4, 1))
    result = attention(query, key, value, scale=0)
    mean = sum(map(Fraction, value.ravel().tolist()), Fraction(0)) / 4
    assert result.output.ravel().tolist() == [round_to(mean, FLOAT64)] * 2
    assert result.lse.ravel().tolist() == [math.log(4)] * 2


def test_negative_scale_negates_the_query() -> None:
    query, key, value = draw(8, (1, 2, 3, 3), (1, 2, 4, 3), (1, 2, 4, 2))
    assert_same(attention(query, key, value, scale=-0.3), attention(-query, key, value, scale=0.3))


# ---------------------------------------------------------------- masks, heads, batches


def test_fully_masked_rows_are_empty() -> None:
    query, key, value = draw(9, (1, 1, 3, 2), (1, 1, 2, 2), (1, 1, 2, 1))
    mask = np.array([[True, False], [False, False], [True, True]])
    for form in (mask, np.where(mask, 0.0, -np.inf)):
        result = attention(query, key, value, attn_mask=form)
        assert (result.output[0, 0, 1, 0], result.lse[0, 0, 1]) == EMPTY_ROW
        assert np.isfinite(result.lse[0, 0, [0, 2]]).all()


def test_no_keys_no_queries_no_columns() -> None:
    empty = attention(np.ones((2, 1, 3, 4)), np.ones((2, 1, 0, 4)), np.ones((2, 1, 0, 5)))
    assert empty.output.tobytes() == np.zeros((2, 1, 3, 5)).tobytes()
    assert (empty.lse == -np.inf).all()
    assert empty.lse.shape == (2, 1, 3)
    assert attention(np.ones((2, 1, 0, 4)), np.ones((1, 1, 3, 4)), np.ones((1, 1, 3, 5))).output.shape == (2, 1, 0, 5)
    assert attention(np.ones((0, 1, 2, 4)), np.ones((0, 1, 3, 4)), np.ones((0, 1, 3, 5))).lse.shape == (0, 1, 2)
    narrow = attention(np.ones((1, 1, 1, 4)), np.ones((1, 1, 1, 4)), np.ones((1, 1, 1, 0)))
    assert (narrow.output.shape, narrow.lse.item()) == ((1, 1, 1, 0), 2.0)


@pytest.mark.parametrize(("q_len", "k_len"), [(2, 4), (4, 2), (3, 3)])
@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
def test_causal_corners(q_len: int, k_len: int, alignment: str) -> None:
    query, key, value = draw(10, (1, 1, q_len, 2), (1, 1, k_len, 2), (1, 1, k_len, 2))
    shift = 0 if alignment == "upper_left" else k_len - q_len
    mask = np.array([[j <= i + shift for j in range(k_len)] for i in range(q_len)])
    result = attention(query, key, value, is_causal=True, causal_alignment=alignment)
    assert_same(result, attention(query, key, value, attn_mask=mask))
    assert np.isneginf(result.lse).ravel().tolist() == [not row.any() for row in mask]


def test_mask_and_causal_both_apply() -> None:
    query, key, value = draw(11, (1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2))
    mask = np.array([[True, True, True], [False, True, True], [True, False, True]])
    both = attention(query, key, value, attn_mask=mask, is_causal=True)
    assert_same(both, attention(query, key, value, attn_mask=mask & np.tri(3, dtype=bool)))


def test_query_heads_read_contiguous_groups() -> None:
    query, key, value = draw(12, (1, 6, 2, 3), (1, 2, 4, 3), (1, 2, 4, 2))
    grouped = attention(query, key, value, enable_gqa=True)
    assert_same(grouped, attention(query, key.repeat(3, axis=1), value.repeat(3, axis=1)))


def test_one_key_batch_serves_all_batches() -> None:
    query, key, value = draw(13, (3, 1, 2, 3), (1, 1, 4, 3), (1, 1, 4, 2))
    assert_same(attention(query, key, value), attention(query, key.repeat(3, axis=0), value.repeat(3, axis=0)))


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 4), (3, 1), (2, 3, 4), (2, 1, 1), (2, 2, 3, 4), (2, 1, 1, 4)])
def test_masks_broadcast_from_every_rank(shape: tuple[int, ...]) -> None:
    query, key, value, bias = draw(14, (2, 2, 3, 2), (2, 2, 4, 2), (2, 2, 4, 1), shape)
    full = np.broadcast_to(bias, (2, 2, 3, 4))
    for mask, whole in ((np.asarray(bias), full), (np.asarray(bias > 0), full > 0)):
        assert_same(attention(query, key, value, attn_mask=mask), attention(query, key, value, attn_mask=whole))


@pytest.mark.parametrize("hidden", [0.0, 1e308, -5e-324, math.nan, math.inf])
def test_hidden_entries_have_no_influence(hidden: float) -> None:
    query, key, value = draw(15, (1, 1, 3, 3), (1, 1, 4, 3), (1, 1, 4, 2))
    mask = np.array([[True, True, False, True], [False] * 4, [False, True, False, True]])
    expected = attention(query, key, value, attn_mask=mask)
    query[0, 0, 1], key[0, 0, 2], value[0, 0, 2] = hidden, hidden, hidden
    assert_same(attention(query, key, value, attn_mask=mask), expected)


def test_a_bias_hidden_by_causal_has_no_influence() -> None:
    query, key, value = draw(16, (1, 1, 2, 3), (1, 1, 2, 3), (1, 1, 2, 2))
    expected = attention(query, key, value, is_causal=True)
    for hidden in (1e308, math.nan, math.inf):
        bias = np.array([[0.0, hidden], [0.0, 0.0]])
        assert_same(attention(query, key, value, is_causal=True, attn_mask=bias), expected)


def test_a_finite_bias_never_masks() -> None:
    lowest = np.finfo(np.float64).min
    assert one_query([0.0, 0.0], [1.0, 2.0], attn_mask=np.array([lowest, lowest])) == (1.5, lowest)


# ---------------------------------------------------------------- errors


def call_with(**changes: Any) -> ExactResult:
    """Call attention on (2, 4, 3, 2) arrays with some arguments replaced."""
    arguments: dict[str, Any] = {
        "query": np.ones((2, 4, 3, 2)),
        "key": np.ones((2, 4, 5, 2)),
        "value": np.ones((2, 4, 5, 6)),
    }
    return attention(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": np.ones((4, 3, 2))}, "query has shape (4, 3, 2): use 4 axes"),
        ({"query": np.ones((2, 4, 3, 2), dtype=int)}, "query has dtype int64: use float16"),
        ({"query": np.ones((2, 4, 3, 0))}, "query has head_dim 0"),
        ({"query": np.ones((2, 4, 3, 1))}, "key has head_dim 2 and query 1"),
        ({"query": np.ones((2, 8, 3, 2))}, "or set enable_gqa"),
        ({"query": np.ones((2, 6, 3, 2)), "enable_gqa": True}, "use a multiple of the key's heads"),
        ({"query": np.ones((3, 4, 3, 2))}, "key and value have batch 2: use the query's 3, or 1"),
        ({"value": np.ones((2, 4, 4, 6))}, "value has (batch, heads, length) (2, 4, 4)"),
        ({"value": np.ones((1, 4, 5, 6))}, "value has (batch, heads, length) (1, 4, 5)"),
        ({"attn_mask": np.ones((4, 5))}, "attn_mask has shape (4, 5): use one that broadcasts"),
        ({"attn_mask": np.ones((1, 2, 4, 3, 5))}, "attn_mask has shape (1, 2, 4, 3, 5)"),
        ({"attn_mask": np.ones((3, 5), dtype=np.int8)}, "attn_mask has dtype int8: use float16, float32, float64 or"),
        ({"attn_mask": np.array(np.nan)}, "attn_mask (batch 0, head 0) holds nan at (0, 0)"),
        ({"attn_mask": np.array(np.inf)}, "attn_mask (batch 0, head 0) holds inf at (0, 0)"),
        ({"scale": math.nan}, "scale is nan: use a finite number"),
        ({"scale": -math.inf}, "scale is -inf"),
        ({"is_causal": True, "causal_alignment": "middle"}, "causal_alignment is 'middle'"),
        ({"query": np.full((2, 4, 3, 2), np.nan)}, "query (batch 0, head 0) holds nan at (0, 0)"),
        ({"key": np.full((2, 4, 5, 2), np.inf)}, "key (read by batch 0, head 0) holds inf at (0, 0)"),
        ({"value": np.full((2, 4, 5, 6), -np.inf)}, "value (read by batch 0, head 0) holds -inf at (0, 0)"),
    ],
)
def test_unusable_input_is_told_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        call_with(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
