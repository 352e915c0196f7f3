"""The tiled reference: against the plain one for every tile and mask, its gradients, and the memory it holds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from bench.live_bytes import LiveBytes

from attnspec.golden.inputs import make_call
from attnspec.reference import flash
from attnspec.reference.attention import attention
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.flash import Gradients, flash_attention, flash_backward
from attnspec.spec.call import Call, Result
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

SIZES = (*range(1, 10), 16, 33, 128)
SHAPES = ("q=17/k=33/d=4", "b=2/hq=6/hkv=2/q=5/k=9/d=3/dv=2", "b=3/bkv=1/hq=2/q=9/k=4/d=1", "q=1/k=34/d=2/hq=4/hkv=1")
MASKS = (
    "",
    "/mask=bool.bhqk.random",
    "/mask=bool.qk.empty_rows/causal",
    "/mask=float.k.bias",
    "/mask=float.hqk.random/causal=lower_right",
    "/mask=float.q1.empty_rows",
    "/mask=bool.b11k.padding/causal=lower_right/scale=-0.4",
    "/mask=float.qk.sentinel/causal",
    "/causal/scale=0",
    "/causal=lower_right",
)
TOLERANCE = 1e-13  # for values and scores of about 1 in float64, whose roundings are 1e-16 each
NAN = torch.nan


def case(text: str) -> tuple[Call, dict[str, Any]]:
    """Return the float64 call that a problem describes, and its options as the reference takes them."""
    problem = Problem.parse(f"{text}/dtype=float64")
    call = make_call(problem)
    options = call.options() | {"causal_alignment": problem.corner}
    return call, options


def assert_close(result: Result, expected: Result) -> None:
    """Compare output and lse, -inf where -inf is expected."""
    __tracebackhide__ = True
    torch.testing.assert_close(result.output, expected.output, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(result.lse, expected.lse, rtol=TOLERANCE, atol=TOLERANCE)


def draw(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Return normal float64 tensors, the same each time."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


# ---------------------------------------------------------------- forward


def test_two_tiles_by_hand() -> None:
    query, value = torch.ones(1, 1, 1, 1), torch.tensor([4.0, 8.0, 1.0]).reshape(1, 1, 3, 1)
    key = torch.tensor([1.0, 3.0, 2.0]).log().reshape(1, 1, 3, 1)
    result = flash_attention(query, key, value, scale=1.0, tile=(1, 2))
    assert result.output.item() == pytest.approx((1 * 4 + 3 * 8 + 2 * 1) / 6, rel=1e-7)  # the keys are float32
    assert result.lse.item() == pytest.approx(math.log(6), rel=1e-7)


def test_the_sum_is_rescaled_when_the_maximum_grows() -> None:
    one, log2 = torch.ones(1, 1, 1, 1, 1, dtype=torch.float64), math.log(2)
    state = flash.step(flash.start(one), 0.0 * one, one.squeeze(2), torch.float64)
    state = flash.step(state, log2 * one, 5.0 * one.squeeze(2), torch.float64)
    assert state.top.item() == log2
    assert state.total.item() == pytest.approx(0.5 + 1.0)
    assert state.mixed.item() == pytest.approx(0.5 * 1.0 + 5.0)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_tile_gives_what_plain_attention_gives(shape: str, mask: str) -> None:
    call, options = case(shape + mask)
    expected = attention(call.query, call.key, call.value, **options)
    for rows, keys in zip(SIZES, reversed(SIZES), strict=True):
        assert_close(flash_attention(call.query, call.key, call.value, tile=(rows, keys), **options), expected)


@pytest.mark.parametrize("size", SIZES)
def test_every_pair_of_ragged_lengths(size: int) -> None:
    lengths = sorted({0, 1, size, size + 1, 2 * size + 1})
    for q_len in lengths:
        for k_len in lengths:
            query, key, value = draw((1, 1, q_len, 2), (1, 1, k_len, 2), (1, 1, k_len, 3))
            options = {"is_causal": True, "causal_alignment": "lower_right"}
            result = flash_attention(query, key, value, tile=(size, size), **options)
            assert_close(result, attention(query, key, value, **options))


@pytest.mark.parametrize(
    "text", ["q=3/k=7/d=3/mask=float.qk.bias", "q=4/k=5/d=2/causal=lower_right", "q=3/k=2/d=1/causal"]
)
def test_it_agrees_with_the_exact_oracle(text: str) -> None:
    call, options = case(text)
    result = flash_attention(call.query, call.key, call.value, tile=(2, 2), **options)
    arrays = [tensor.numpy() for tensor in (call.query, call.key, call.value)]
    if call.attn_mask is not None:
        options["attn_mask"] = call.attn_mask.numpy()
    truth = exact_attention(*arrays, **options)
    np.testing.assert_allclose(result.output.numpy(), truth.output, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(result.lse.numpy(), truth.lse, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("shift", [-1000.0, -120.0, 120.0, 1000.0])
def test_scores_far_from_zero_neither_overflow_nor_vanish(shift: float) -> None:
    query, key, value = draw((1, 1, 5, 3), (1, 1, 11, 3), (1, 1, 11, 3))
    bias = torch.full((11,), shift, dtype=torch.float64)
    result = flash_attention(query, key, value, attn_mask=bias, tile=(2, 3))
    plain = attention(query, key, value)
    torch.testing.assert_close(result.output, plain.output, rtol=1e-11, atol=1e-11)  # scores of 1000 round to 1e-13
    torch.testing.assert_close(result.lse, plain.lse + shift, rtol=1e-12, atol=0)


def test_a_nan_that_is_seen_comes_through_and_goes_no_further() -> None:
    query, key, value = draw((1, 1, 4, 2), (1, 1, 6, 2), (1, 1, 6, 3))
    value[0, 0, 1, 2] = NAN
    result = flash_attention(query, key, value, is_causal=True, tile=(3, 2))
    expected = torch.zeros(1, 1, 4, 3, dtype=torch.bool)
    expected[0, 0, 1:, 2] = True
    assert torch.equal(result.output[0, 0, 1:].isnan(), expected[0, 0, 1:])
    key[0, 0, 5] = NAN
    assert flash_attention(query, key, value, tile=(3, 2)).lse.isnan().all()


# ---------------------------------------------------------------- keys that are not there


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "causal_alignment": "lower_right"}])
@pytest.mark.parametrize("tile", [(1, 1), (2, 3), (4, 4), (16, 16)])
@pytest.mark.parametrize("junk", [NAN, torch.inf, 1e300])
def test_keys_beyond_the_length_are_not_read(options: dict[str, Any], tile: tuple[int, int], junk: float) -> None:
    lengths = torch.tensor([7, 0, 3, 1])
    query, key, value, bias = draw((4, 2, 5, 3), (4, 1, 7, 3), (4, 1, 7, 2), (4, 1, 5, 7))
    for b, length in enumerate(lengths):
        key[b, :, length:] = value[b, :, length:] = junk
        bias[b, :, :, length:] = junk
    options = options | {"enable_gqa": True, "tile": tile}
    result = flash_attention(query, key, value, attn_mask=bias, key_lengths=lengths, **options)
    ones = (torch.ones_like(result.output), torch.ones_like(result.lse))
    given = {"grad_lse": ones[1], "attn_mask": bias, "key_lengths": lengths} | options
    grads = flash_backward(query, key, value, *result[:2], ones[0], **given)
    for b, length in enumerate(lengths):
        some = (query[b : b + 1], key[b : b + 1, :, :length], value[b : b + 1, :, :length])
        own = options | {"attn_mask": bias[b : b + 1, :, :, :length]}
        alone = flash_attention(*some, **own)
        assert_close(Result(result.output[b : b + 1], result.lse[b : b + 1]), alone)
        own_grads = flash_backward(*some, *alone[:2], ones[0][:1], grad_lse=ones[1][:1], **own)
        torch.testing.assert_close(grads.query[b : b + 1], own_grads.query, rtol=TOLERANCE, atol=TOLERANCE)
        for found, expected in ((grads.key, own_grads.key), (grads.value, own_grads.value)):
            torch.testing.assert_close(found[b : b + 1, :, :length], expected, rtol=TOLERANCE, atol=TOLERANCE)
            assert (found[b, :, length:] == 0).all()


# ---------------------------------------------------------------- backward


def gradients(call: Call, options: dict[str, Any], grad_output: torch.Tensor, grad_lse: torch.Tensor) -> Gradients:
    """Return what autograd gives through plain attention, 0 where an empty row makes it NaN in the lse."""
    additive = call.attn_mask is not None and call.attn_mask.dtype != torch.bool
    tensors = (call.query, call.key, call.value, *([call.attn_mask] if additive else []))
    inputs = [tensor.detach().requires_grad_() for tensor in tensors]
    given = options | ({"attn_mask": inputs[3]} if additive else {})
    result = attention(*inputs[:3], **given)
    grad_lse = grad_lse.masked_fill(result.lse == -torch.inf, 0.0)
    lse = result.lse.masked_fill(result.lse == -torch.inf, 0.0)
    return Gradients(*torch.autograd.grad((result.output, lse), inputs, (grad_output, grad_lse)))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tile", [(1, 4), (3, 2), (5, 9), (16, 16), (128, 128)])
def test_gradients_are_those_of_autograd(shape: str, mask: str, tile: tuple[int, int]) -> None:
    call, options = case(shape + mask)
    result = flash_attention(call.query, call.key, call.value, tile=tile, **options)
    grad_output, grad_lse = draw(tuple(result.output.shape), tuple(result.lse.shape))
    expected = gradients(call, options, grad_output, grad_lse)
    inputs = (call.query, call.key, call.value, *result[:2], grad_output)
    found = flash_backward(*inputs, grad_lse=grad_lse, tile=tile, **options)
    assert result.lse is not None
    size = result.lse.nan_to_num(neginf=0.0).abs().amax().item()
    tolerance = TOLERANCE * (1 + size)  # the lse is rounded, and the recomputed weights with it
    for name, got, want in zip(Gradients._fields, found, expected, strict=True):
        if want is None:
            assert got is None
        else:
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("size", ["bhqk", "b11k", "h1k", "q1", "1k", "1"])
def test_the_bias_gets_the_sum_over_what_was_broadcast(size: str) -> None:
    lengths = {"b": 2, "h": 4, "q": 5, "k": 7, "1": 1}
    query, key, value, bias = draw((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 3), tuple(lengths[letter] for letter in size))
    options: dict[str, Any] = {"attn_mask": bias, "enable_gqa": True, "tile": (2, 3)}
    result = flash_attention(query, key, value, **options)
    (grad_output,) = draw((2, 4, 5, 3))
    found = flash_backward(query, key, value, *result[:2], grad_output, **options)
    whole = options | {"attn_mask": bias.expand(2, 4, 5, 7)}
    expected = flash_backward(query, key, value, *result[:2], grad_output, **whole)
    torch.testing.assert_close(found.attn_mask, expected.attn_mask.sum_to_size(bias.shape), rtol=1e-12, atol=1e-12)


def test_rows_without_keys_give_no_gradient() -> None:
    query, key, value, grad_output = draw((1, 1, 5, 3), (1, 1, 2, 3), (1, 1, 2, 3), (1, 1, 5, 3))
    options: dict[str, Any] = {"is_causal": True, "causal_alignment": "lower_right", "tile": (2, 2)}
    result = flash_attention(query, key, value, **options)
    assert (result.output[:, :, :3] == 0).all()
    assert (result.lse[:, :, :3] == -torch.inf).all()
    ones = torch.ones_like(result.lse)
    found = flash_backward(query, key, value, *result[:2], grad_output, grad_lse=ones, **options)
    assert (found.query[:, :, :3] == 0).all()
    below = (query[:, :, 3:], key, value, result.output[:, :, 3:], result.lse[:, :, 3:], grad_output[:, :, 3:])
    alone = flash_backward(*below, grad_lse=ones[:, :, 3:], **options)
    for got, want in zip(found[1:3], alone[1:3], strict=True):
        torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("shift", [-1000.0, -120.0, 120.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_recomputed_from_an_lse_of_any_size(shift: float, dtype: torch.dtype) -> None:
    query, key, value, grad_output = (x.to(dtype) for x in draw((1, 1, 5, 3), (1, 1, 7, 3), (1, 1, 7, 3), (1, 1, 5, 3)))
    grads = []
    for bias in (0.0, shift):
        options: dict[str, Any] = {
            "attn_mask": torch.full((7,), bias, dtype=dtype),
            "tile": (2, 3),
            "accumulate": dtype,
        }
        result = flash_attention(query, key, value, **options)
        grads.append(flash_backward(query, key, value, *result[:2], grad_output, **options))
    tolerance = 4 * 1000 * torch.finfo(dtype).eps  # a score and an lse of 1000 each round to half of 1000 eps
    for got, want in zip(grads[1][:3], grads[0][:3], strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- memory, dtypes, refusals


def peak(length: int) -> int:
    """Return the bytes held beyond inputs and results by a forward and a backward pass in tiles of 16 x 16."""
    query, key, value, grad_output = draw(*[(1, 1, length, 4)] * 4)
    with LiveBytes() as memory:
        result = flash_attention(query, key, value, is_causal=True, tile=(16, 16))
        grads = flash_backward(query, key, value, *result[:2], grad_output, is_causal=True, tile=(16, 16))
    results = (*result[:2], *grads[:3])
    return memory.peak - sum(tensor.untyped_storage().nbytes() for tensor in results)


def test_extra_memory_is_one_number_a_row_and_a_few_tiles() -> None:
    sizes = [peak(length) for length in (64, 96, 128)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == 32 * 8  # delta, in float64
    assert sizes[2] < 128 * 128 * 8 / 4  # a quarter of the scores


def test_weights_are_rounded_once_where_asked() -> None:
    query, key, value = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 2, 1), torch.ones(1, 1, 2, 1)
    bias = torch.tensor([0.0, -1.0])
    weight = math.exp(-1)
    rounded = float(torch.tensor(weight).bfloat16())
    options: dict[str, Any] = {"attn_mask": bias, "accumulate": torch.float32}
    result = flash_attention(query, key, value, weights=torch.bfloat16, **options)
    assert result.output.dtype == result.lse.dtype == torch.float32
    assert result.output.item() == pytest.approx((1 + rounded) / (1 + weight), rel=1e-6)  # the sum is not rounded
    assert flash_attention(query, key, value, **options).output.item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tile": (0, 4)}, r"tile is \(0, 4\)"),
        ({"causal_alignment": "middle"}, "causal_alignment is 'middle'"),
        ({"attn_mask": torch.ones(3, 4)}, r"attn_mask \(3, 4\) does not broadcast"),
        ({"key_lengths": torch.tensor([5, 5])}, "key_lengths is"),
        ({"key_lengths": torch.tensor([5.0])}, "key_lengths is"),
        ({"key_lengths": torch.tensor([6])}, r"key_lengths holds \[6\]: use 0 to 5"),
        ({"enable_gqa": False}, "set enable_gqa"),
    ],
)
def test_bad_input_is_told_in_one_line(options: dict[str, Any], complaint: str) -> None:
    query, key, value = draw((1, 4, 3, 2), (1, 2, 5, 2), (1, 2, 5, 2))
    with pytest.raises(InputError, match=complaint):
        flash_attention(query, key, value, **({"enable_gqa": True} | options))


def test_a_result_of_another_shape_is_refused() -> None:
    query, key, value = draw((1, 1, 3, 2), (1, 1, 5, 2), (1, 1, 5, 2))
    output, lse, _ = flash_attention(query, key, value)
    with pytest.raises(InputError, match="lse is"):
        flash_backward(query, key, value, output, lse[:, :, :2], output)
    with pytest.raises(InputError, match="3 query heads cannot share 2"):
        flash_attention(*draw((1, 3, 3, 2), (1, 2, 5, 2), (1, 2, 5, 2)), enable_gqa=True)
