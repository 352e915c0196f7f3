"""The exact oracle: roundings against the machine's own, hand-computed attention, ties, and 60-digit mpmath."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnspec.reference.exact import ExactResult, UndecidedError, attention, precision, round_ball, round_near, round_to
from attnspec.spec.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FORMATS, Format
from attnspec.spec.errors import InputError

Array = NDArray[np.float64]

ULP = 2.0**-52
HALF_ULP = 2.0**-53
DIGITS = 60
EMPTY_ROW = (0.0, -math.inf)


# ---------------------------------------------------------------- helpers


def one_query(scores: list[float], values: list[float], **options: Any) -> tuple[float, float]:
    """Return (output, lse) of one query whose keys have these scores (times the scale, 1 unless given)."""
    key = np.array(scores, dtype=np.float64).reshape(1, 1, -1, 1)
    value = np.array(values, dtype=np.float64).reshape(1, 1, -1, 1)
    result = attention(np.ones((1, 1, 1, 1)), key, value, **({"scale": 1.0} | options))
    return float(result.output[0, 0, 0, 0]), float(result.lse[0, 0, 0])


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Return normal float64 arrays of a generator with a fixed stream."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.standard_normal(shape) for shape in shapes]


def assert_same(left: ExactResult, right: ExactResult) -> None:
    """Compare results bit for bit."""
    __tracebackhide__ = True
    assert left.output.tobytes() == right.output.tobytes()
    assert left.lse.tobytes() == right.lse.tobytes()


def fraction_of(x: mpmath.mpf) -> Fraction:
    """Return the exact value of an mpmath number."""
    sign, mantissa, exponent, _ = x._mpf_
    magnitude = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude


# ---------------------------------------------------------------- rounding


@pytest.mark.parametrize(("fmt", "dtype"), [(FLOAT16, np.float16), (FLOAT32, np.float32)])
def test_rounding_agrees_with_numpy_casts(fmt: Format, dtype: type[np.floating]) -> None:
    source = random.Random(0)
    spread = fmt.precision + 4
    xs = [
        source.uniform(-1, 1) * 2.0 ** source.randint(fmt.emin - spread, fmt.emax + 3) for _ in range(4000)
    ]  # subnormals and overflow included
    with np.errstate(over="ignore"):
        assert [round_to(Fraction(x), fmt) for x in xs] == [float(np.float64(x).astype(dtype)) for x in xs]


def test_rounding_of_ties_agrees_with_numpy_casts() -> None:
    halves = np.arange(0, 2**16 - 1, 5, dtype=np.uint16).view(np.float16)
    steps = [float(x) for x in halves if np.isfinite(x)]
    ties = [(a + float(np.nextafter(np.float16(a), np.float16(np.inf)))) / 2 for a in steps]
    with np.errstate(over="ignore"):
        finite = [x for x in ties if math.isfinite(x)]
        assert [round_to(Fraction(x), FLOAT16) for x in finite] == [float(np.float16(x)) for x in finite]


def test_rounding_to_float64_agrees_with_python_division() -> None:
    source = random.Random(1)
    for _ in range(4000):
        n, d = source.getrandbits(source.randint(1, 1300)) or 1, source.getrandbits(source.randint(1, 1300)) or 1
        x = Fraction(n if source.random() < 0.5 else -n, d)
        try:
            expected = float(x)
        except OverflowError:
            expected = math.inf if x > 0 else -math.inf
        assert round_to(x, FLOAT64) == expected


def test_rounding_to_bfloat16_rounds_once() -> None:
    assert round_to(1 + Fraction(2) ** -8 + Fraction(2) ** -30, BFLOAT16) == 1 + 2.0**-7
    assert round_to(1 + Fraction(2) ** -8, BFLOAT16) == 1.0
    assert round_to(1 + Fraction(2) ** -8 - Fraction(2) ** -2000, BFLOAT16) == 1.0
    assert round_to(1 + 3 * Fraction(2) ** -8, BFLOAT16) == 1 + 2.0**-6


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_rounding_at_the_edges_of_a_format(fmt: Format) -> None:
    largest, smallest = Fraction(fmt.largest), Fraction(2) ** (fmt.emin - fmt.precision + 1)
    beyond = largest + Fraction(2) ** (fmt.emax - fmt.precision)  # the midpoint between the largest and 2^(emax + 1)
    assert round_to(beyond, fmt) == math.inf
    assert round_to(-beyond, fmt) == -math.inf
    assert round_to(beyond, fmt, nudge=-1) == fmt.largest
    assert round_to(-beyond, fmt, nudge=1) == -fmt.largest
    assert round_to(smallest / 2, fmt) == 0.0
    assert round_to(smallest / 2, fmt, nudge=1) == smallest
    assert round_to(-smallest / 2, fmt, nudge=-1) == -smallest
    assert round_to(smallest * Fraction(3, 2), fmt) == 2 * smallest
    assert [math.copysign(1, round_to(-smallest / n, fmt)) for n in (2, 4)] == [1.0, 1.0]


def test_a_nudge_settles_ties_and_nothing_else() -> None:
    tie = 1 + Fraction(HALF_ULP)
    assert [round_to(tie, FLOAT64, nudge) for nudge in (-1, 0, 1)] == [1.0, 1.0, 1 + ULP]
    assert [round_to(Fraction(1), FLOAT64, nudge) for nudge in (-1, 0, 1)] == [1.0, 1.0, 1.0]


def test_a_ball_is_rounded_only_where_its_ends_agree() -> None:
    with precision.working_precision(128):
        assert round_ball(arb(1, 2.0**-60), FLOAT64) == 1.0
        assert round_ball(arb(1, 2.0**-50), FLOAT64) is None
        assert round_ball(arb(1) + arb(HALF_ULP, 2.0**-90), FLOAT64) is None
    assert round_ball(arb(0, 2.0**-1080), FLOAT64) == 0.0
    assert round_ball(arb("nan"), FLOAT64) is None
    assert round_ball(arb("inf"), FLOAT64) is None
    assert round_ball(arb(3), FLOAT64, exponent=-(10**40)) == 0.0
    assert round_ball(arb(-3), FLOAT64, exponent=10**40) == -math.inf


def test_an_offset_of_any_size_decides_a_tie() -> None:
    tie = 1 + Fraction(HALF_ULP)
    for gap in (40, 200, 10**5, 10**15):
        assert round_near(tie, (-arb(gap)).exp(), FLOAT64) == 1 + ULP
        assert round_near(tie, -((-arb(gap)).exp()), FLOAT64) == 1.0
    assert round_near(tie, arb(0, 2.0**-200), FLOAT64) is None
    assert round_near(Fraction(1), arb(0, 2.0**-200), FLOAT64) == 1.0
    assert round_near(tie, arb(10) ** 9999, FLOAT64) is None


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


# ---------------------------------------------------------------- ties and vanishing weights


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


# ---------------------------------------------------------------- 60 digits of mpmath


def exact_products(row: Array, keys: Array) -> list[mpmath.mpf]:
    """Return q.k for one query (head_dim,) and keys (k_len, head_dim), at mpmath's working precision."""
    return [
        mpmath.fsum(mpmath.mpf(a) * mpmath.mpf(b) for a, b in zip(row.tolist(), k.tolist(), strict=True)) for k in keys
    ]


def naive_attention(
    query: Array, key: Array, value: Array, bias: Array, scale: mpmath.mpf
) -> tuple[list[list[mpmath.mpf]], list[mpmath.mpf]]:
    """Return output (q_len, value_dim) and lse (q_len,) of one head as mpmath numbers; no row may be empty."""
    outputs, lses = [], []
    for row, biases in zip(query, bias.tolist(), strict=True):
        scores = [s * scale + b for s, b in zip(exact_products(row, key), biases, strict=True)]
        weights = [mpmath.exp(s) for s in scores]
        total = mpmath.fsum(weights)
        outputs.append([mpmath.fdot(weights, map(mpmath.mpf, column)) / total for column in value.T.tolist()])
        lses.append(mpmath.log(total))
    return outputs, lses


@dataclass(frozen=True)
class Case:
    """One drawn call: sizes, what it does, and the seed of its numbers. `spread` stretches half of the keys."""

    seed: int
    q_len: int
    k_len: int
    dim: int
    fmt: Format
    spread: float
    scale: float | None
    biased: bool
    is_causal: bool


cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    q_len=st.integers(1, 4),
    k_len=st.integers(1, 6),
    dim=st.integers(1, 5),
    fmt=st.sampled_from(list(FORMATS.values())),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    scale=st.sampled_from([None, 0.0, -0.7, 1.25]),
    biased=st.booleans(),
    is_causal=st.booleans(),
)


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(cases)
def test_agrees_with_a_naive_evaluation_to_60_digits(case: Case) -> None:
    slots = (case.q_len, case.k_len)
    query, key, value, bias = draw(case.seed, (case.q_len, case.dim), (case.k_len, case.dim), (case.k_len, 2), slots)
    key[case.k_len // 2 :] *= case.spread
    mask = bias * case.spread if case.biased else None
    heads = (x[None, None] for x in (query, key, value))
    result = attention(*heads, attn_mask=mask, is_causal=case.is_causal, scale=case.scale, rounded_to=case.fmt)

    bias = np.zeros(slots) if mask is None else mask
    bias = np.where(np.tri(*slots, dtype=bool), bias, -np.inf) if case.is_causal else bias
    with mpmath.workdps(DIGITS):
        scale = 1 / mpmath.sqrt(case.dim) if case.scale is None else mpmath.mpf(case.scale)
        outputs, lses = naive_attention(query, key, value, bias, scale)
    expected = [round_to(fraction_of(o), case.fmt) for o in itertools.chain(*outputs)]
    assert result.output.ravel().tolist() == expected
    assert result.lse.ravel().tolist() == [round_to(fraction_of(x), case.fmt) for x in lses]


def test_a_larger_head_stays_within_float64_error() -> None:
    query, key, value = (x.astype(np.float32) for x in draw(17, (1, 1, 40, 64), (1, 1, 50, 64), (1, 1, 50, 16)))
    weights = np.exp(query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2) / 8)
    plain = weights @ value.astype(np.float64) / weights.sum(axis=-1, keepdims=True)
    result = attention(query, key, value)
    np.testing.assert_allclose(result.output, plain, rtol=0, atol=1e-14)
    np.testing.assert_allclose(result.lse, np.log(weights.sum(axis=-1)), rtol=1e-14)


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
