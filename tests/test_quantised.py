"""Quantised keys and values: by hand, every code, the laws of scales, and the faults that each law finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from laws import law_tests

from attnspec.reference.attention import attention
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.paged import contiguous
from attnspec.reference.quantised import absmax_scale, dequantise, quantise, quantised_attention
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
DTYPES = (torch.int8, torch.float8_e4m3fn)
GRAIN = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "channel": (0, 2), "token": (3,), "head of a batch": (2, 3)}
Kernel = Callable[..., Result]
T = torch.Tensor


def drawn(dtype: torch.dtype, grain: str = "head", k_len: int = 6) -> tuple[T, ...]:
    """Return query, quantised key and value, and their scales: heads and channels of different sizes."""
    generator = torch.Generator().manual_seed(3)
    size = torch.tensor([0.5, 4.0])[:, None, None] * torch.arange(1.0, 6.0)
    query, key, value = (torch.randn(2, h, n, 5, generator=generator) for h, n in ((4, 3), (2, k_len), (2, k_len)))
    scales = [absmax_scale(x * size, dtype, GRAIN[grain]) for x in (key, value)]
    stored = [quantise(x * size, scale, dtype) for x, scale in zip((key, value), scales, strict=True)]
    return query, *stored, *scales


def assert_close(got: T | None, want: T | None, tolerance: float = TOLERANCE) -> None:
    __tracebackhide__ = True
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- by hand


def test_two_keys_by_hand() -> None:
    key = torch.tensor([0, 4], dtype=torch.int8).reshape(1, 1, 2, 1)
    value = torch.tensor([-128, 127], dtype=torch.int8).reshape(1, 1, 2, 1)
    result = quantised_attention(torch.ones(1, 1, 1, 1), key, value, torch.tensor(0.25), torch.tensor(0.5))
    assert result.lse is not None
    assert result.output.item() == pytest.approx((-64 + 63.5 * math.e) / (1 + math.e))
    assert result.lse.item() == pytest.approx(math.log(1 + math.e))


def every_code_of_e4m3() -> list[float]:
    """Sign, 4 bits of exponent with a bias of 7, 3 of mantissa; all ones is NaN."""
    numbers = []
    for code in range(256):
        sign, exponent, mantissa = (-1) ** (code >> 7), code >> 3 & 15, code & 7
        number = 2.0**-6 * mantissa / 8 if exponent == 0 else 2.0 ** (exponent - 7) * (1 + mantissa / 8)
        numbers.append(math.nan if code & 127 == 127 else sign * number)
    return numbers


def test_every_code_stands_for_its_number() -> None:
    codes = torch.arange(256).to(torch.uint8)
    got = dequantise(codes.view(torch.float8_e4m3fn).reshape(1, 1, 1, 256), torch.tensor(3.0)).flatten()
    assert_close(got.nan_to_num(-1e4), 3 * torch.tensor(every_code_of_e4m3()).double().nan_to_num(-1e4 / 3))
    got = dequantise(codes.view(torch.int8).reshape(1, 1, 1, 256), torch.tensor(0.5)).flatten()
    assert got.tolist() == [0.5 * n for n in (*range(128), *range(-128, 0))]


# ---------------------------------------------------------------- quantising


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_go_to_the_nearest_code(dtype: torch.dtype) -> None:
    codes = every_code_of_e4m3() if dtype == torch.float8_e4m3fn else [float(n) for n in range(-128, 128)]
    table = torch.tensor(sorted({c for c in codes if not math.isnan(c)})).double()
    between = (table[1:] + table[:-1]) / 2
    x = torch.cat([table, between, between * (1 + 2.0**-40), between * (1 - 2.0**-40), table * 1.3])
    scale = torch.tensor(0.25)
    got = dequantise(quantise(0.25 * x[None, None, None], scale, dtype), scale).flatten() / 0.25
    inside = x.clamp(table[0], table[-1])
    assert_close((got - inside).abs(), (table[:, None] - inside).abs().amin(0), 0.0)
    even = quantise(0.25 * between[None, None, None], scale, dtype).view(torch.uint8).flatten()
    assert (even % 2 == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("grain", GRAIN)
def test_the_largest_number_is_kept_and_others_are_within_half_a_step(dtype: torch.dtype, grain: str) -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).double()
    x[0, 0] = 0.0
    scale = absmax_scale(x, dtype, GRAIN[grain])
    back = dequantise(quantise(x, scale, dtype), scale)
    step = scale.double() if dtype == torch.int8 else torch.maximum(x.abs() * 2.0**-3, scale.double() * 2.0**-9)
    assert ((back - x).abs() <= step / 2 + 1e-6 * x.abs()).all()
    largest = x.abs().amax(GRAIN[grain])
    assert_close(back.abs().amax(GRAIN[grain]), largest, 1e-6)


# ---------------------------------------------------------------- laws


def is_attention_over_scale_times_stored(kernel: Kernel) -> None:
    for dtype in DTYPES:
        for grain in GRAIN:
            query, key, value, key_scale, value_scale = drawn(dtype, grain, k_len=5)  # as many tokens as channels
            keys, values = key.double() * key_scale, value.double() * value_scale
            for options in ({}, {"is_causal": True, "causal_alignment": "lower_right", "scale": -0.3}):
                want = attention(query.double(), keys, values, enable_gqa=True, **options)
                got = kernel(query, key, value, key_scale, value_scale, enable_gqa=True, **options)
                assert_close(got.output, want.output, 1e-12)
                assert_close(got.lse, want.lse, 1e-12)


def takes_a_scale_of_1_for_the_number_itself(kernel: Kernel) -> None:
    """Against the exact oracle, integers and fractions that both dtypes hold."""
    one, key, value = torch.tensor(1.0), torch.arange(-6.0, 6.0), torch.arange(12.0)
    key, value = key.reshape(1, 1, 4, 3), value.reshape(1, 1, 4, 3)
    query = torch.tensor([[0.5, -0.25, 0.125]])[None, None]
    true = exact_attention(query.numpy(), key.numpy(), value.numpy())
    for dtype in DTYPES:
        got = kernel(query, key.to(dtype), value.to(dtype), one, one)
        assert_close(got.output, torch.from_numpy(true.output))
        assert_close(got.lse, torch.from_numpy(true.lse))


def gives_equal_scales_the_result_of_one(kernel: Kernel) -> None:
    for dtype in DTYPES:
        query, key, value, *_ = drawn(dtype)
        one = kernel(query, key, value, torch.tensor(0.02), torch.tensor(3.0), enable_gqa=True)
        for shape in ((1, 2, 1, 1), (1, 2, 1, 5), (2, 2, 6, 1), (2, 2, 1, 1)):
            many = kernel(query, key, value, torch.full(shape, 0.02), torch.full(shape, 3.0), enable_gqa=True)
            assert_close(many.output, one.output)


def does_not_show_absent_codes(kernel: Kernel) -> None:
    query, key, value, key_scale, value_scale = drawn(torch.float8_e4m3fn, "token")
    lengths = torch.tensor([4, 6])
    clean = kernel(query, key, value, key_scale, value_scale, key_lengths=lengths, enable_gqa=True)
    dirty = [x.clone() for x in (key, value, key_scale, value_scale)]
    for x in dirty[:2]:
        x.view(torch.uint8)[0, :, 4:] = 127  # NaN
    for x in dirty[2:]:
        x[0, :, 4:] = math.nan
    assert torch.equal(kernel(query, *dirty, key_lengths=lengths, enable_gqa=True).output, clean.output)


LAWS = (is_attention_over_scale_times_stored, takes_a_scale_of_1_for_the_number_itself)
LAWS += (gives_equal_scales_the_result_of_one, does_not_show_absent_codes)


def scale_of_head_0(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    first = key_scale[:, :1] if key_scale.ndim else key_scale
    return quantised_attention(query, key, value, first, value_scale, **options)


def value_scales_of_the_other_head(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    keys, values = ((x.double() * s).expand(x.shape) for x, s in ((key, key_scale), (value, value_scale)))
    wrong = (value.double() * value_scale.flip(1)).expand(value.shape) if value_scale.ndim else values
    return attention(query.double(), keys, wrong, **options)


def scales_swapped(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    return quantised_attention(query, key, value, value_scale, key_scale, **options)


def key_scale_forgotten(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    return quantised_attention(query, key, value, torch.tensor(1.0), value_scale, **options)


def value_scale_twice(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    return quantised_attention(query, key, value, key_scale, value_scale**2, **options)


def divided_by_the_scale(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    return quantised_attention(query, key, value, 1 / key_scale, value_scale, **options)


def channels_read_as_tokens(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    if key_scale.shape[-1:] == (key.shape[2],):
        key_scale = key_scale.transpose(2, 3)
    return quantised_attention(query, key, value, key_scale, value_scale, **options)


def int8_read_without_sign(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    keys = (key.view(torch.uint8) if key.dtype == torch.int8 else key).double() * key_scale
    return attention(query.double(), keys, value.double() * value_scale, **options)


def e4m3_read_as_e5m2(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    keys = (key if key.dtype == torch.int8 else key.view(torch.float8_e5m2)).double() * key_scale
    return attention(query.double(), keys, value.double() * value_scale, **options)


def another_path_for_channels(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    value_scale = value_scale * 1.01 if value_scale.shape[-1:] == (5,) else value_scale
    return quantised_attention(query, key, value, key_scale, value_scale, **options)


def absent_scales_multiplied(query: T, key: T, value: T, key_scale: T, value_scale: T, **options: Any) -> Result:
    result = quantised_attention(query, key, value, key_scale, value_scale, **options)
    return Result(result.output + 0 * value_scale.sum(), result.lse)


FAULTS = [
    *(
        (fault, is_attention_over_scale_times_stored)
        for fault in (
            scale_of_head_0,
            value_scales_of_the_other_head,
            scales_swapped,
            key_scale_forgotten,
            value_scale_twice,
            divided_by_the_scale,
            channels_read_as_tokens,
        )
    ),
    (int8_read_without_sign, takes_a_scale_of_1_for_the_number_itself),
    (e4m3_read_as_e5m2, takes_a_scale_of_1_for_the_number_itself),
    (another_path_for_channels, gives_equal_scales_the_result_of_one),
    (absent_scales_multiplied, does_not_show_absent_codes),
]


test_the_reference_keeps_the_law, test_a_fault_breaks_the_law, test_each_law_finds_a_fault = law_tests(
    (quantised_attention,), LAWS, FAULTS
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_truth_is_exact_attention_over_exact_products(dtype: torch.dtype) -> None:
    query, key, value, key_scale, value_scale = drawn(dtype)
    keys, values = dequantise(key, key_scale), dequantise(value, value_scale)
    true = exact_attention(query.double().numpy(), keys.numpy(), values.numpy(), enable_gqa=True)
    got = quantised_attention(query, key, value, key_scale, value_scale, enable_gqa=True)
    assert_close(got.output, torch.from_numpy(true.output), 1e-12)
    back = np.asarray(keys) / np.asarray(key_scale.double())
    assert (back == np.asarray(key.double())).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_pages_are_put_in_order_as_they_are(dtype: torch.dtype) -> None:
    query, key, value, key_scale, value_scale = drawn(dtype)
    table, lengths = torch.tensor([[5, 0, 2], [1, 4, 3]]), torch.tensor([6, 5])
    pages = [torch.zeros(6, 2, 2, 5).to(dtype) for _ in (key, value)]
    for stored, source in zip(pages, (key, value), strict=True):
        for b, row in enumerate(table.tolist()):
            for n, block in enumerate(row):
                stored[block] = source[b, :, 2 * n : 2 * n + 2].transpose(0, 1)
    ordered = [contiguous(stored, table, lengths) for stored in pages]
    got = quantised_attention(query, *ordered, key_scale, value_scale, key_lengths=lengths, enable_gqa=True)
    want = quantised_attention(query, key, value, key_scale, value_scale, key_lengths=lengths, enable_gqa=True)
    assert torch.equal(got.output, want.output)


def test_rounding_of_products_is_a_dialect() -> None:
    query, key, value, key_scale, value_scale = drawn(torch.int8)
    rounded = quantised_attention(query, key, value, key_scale, value_scale, rounded_to=torch.bfloat16, enable_gqa=True)
    keys, values = ((x.double() * s).bfloat16().double() for x, s in ((key, key_scale), (value, value_scale)))
    assert_close(rounded.output, attention(query.double(), keys, values, enable_gqa=True).output)
    exact = quantised_attention(query, key, value, key_scale, value_scale, enable_gqa=True)
    assert 1e-4 < (rounded.output - exact.output).abs().max() < 1.0


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({2: torch.ones(5)}, "scale of key has shape (5,): use () or four dimensions, each 1 or that of (2, 2, 6, 5)"),
        (
            {2: torch.ones(1, 4, 1, 1)},
            "scale of key has shape (1, 4, 1, 1): use () or four dimensions, each 1 or that of",
        ),
        ({3: torch.ones(2, 1)}, "scale of value has shape (2, 1): use () or four dimensions"),
        ({2: torch.tensor(1)}, "scale of key is torch.int64: use torch.float32 or a narrower floating dtype"),
        ({2: torch.tensor(1.0).double()}, "scale of key is torch.float64: use torch.float32 or a narrower"),
        ({0: torch.zeros(2, 2, 6, 5)}, "key is torch.float32: use torch.int8 or torch.float8_e4m3fn"),
        ({1: torch.zeros(2, 6, 5).char()}, "value has 3 dimensions: use (batch, heads, length, dim)"),
    ],
)
def test_bad_input_is_told_in_one_line(changes: dict[int, T], message: str) -> None:
    query, *rest = drawn(torch.int8)
    given = [changes.get(place, x) for place, x in enumerate(rest)]
    with pytest.raises(InputError) as caught:
        quantised_attention(query, *given, enable_gqa=True)
    assert str(caught.value).startswith(message)


def test_a_scale_that_cannot_be_is_refused_when_quantising() -> None:
    x = torch.ones(1, 1, 1, 2)
    assert absmax_scale(0 * x, torch.int8, (3,)).flatten().tolist() == [1.0]
    for scale in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="not positive: use positive ones"):
            quantise(x, torch.tensor(scale), torch.int8)
    with pytest.raises(InputError, match=r"^dtype is torch.uint8: use torch.int8 or torch.float8_e4m3fn$"):
        absmax_scale(x, torch.uint8, (3,))
