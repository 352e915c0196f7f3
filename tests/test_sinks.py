"""Sinks: the reference against numbers worked out by hand, autograd, tiles, one more key, and the exact oracle."""

from __future__ import annotations

import math

import pytest
import torch

from attnspec.conformance.budget import error_budget, sinks_as_keys
from attnspec.golden.inputs import make_call
from attnspec.golden.regenerate import truth
from attnspec.reference.attention import answer, attention
from attnspec.reference.backward import gradients
from attnspec.reference.flash import flash_attention, flash_backward
from attnspec.spec.call import Call
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

PROBLEMS = (
    "b=2/hq=4/hkv=2/q=5/k=7/d=8/dv=3/dtype=float64/sinks/causal/grad=lse",
    "b=2/hq=2/q=7/k=5/d=8/dtype=float64/sinks/mask=float.1hqk.random/grad=lse",
    "b=2/hq=2/q=4/k=6/d=8/dtype=float64/sinks/mask=bool.bhqk.empty_rows/grad=lse",
    "b=3/hq=2/q=3/k=6/d=8/dtype=float64/sinks=low/lengths=zero/causal=lower_right/grad=lse",
    "hq=2/q=3/k=6/d=8/dtype=float64/sinks=high/shift=40/grad",
)


def call_of(text: str) -> tuple[Call, str]:
    problem = Problem.parse(text)
    return make_call(problem), problem.causal or "upper_left"


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


def test_equal_scores_give_the_mean_times_n_over_n_plus_e_to_the_sink() -> None:
    value = torch.arange(6.0, dtype=torch.float64).reshape(1, 1, 3, 2)  # mean 2, 3
    sinks = torch.tensor([math.log(5.0)], dtype=torch.float64)
    result = attention(0 * ones(1, 1, 1, 4), ones(1, 1, 3, 4), value, sinks=sinks)
    torch.testing.assert_close(result.output, torch.tensor([[[[2.0, 3.0]]]], dtype=torch.float64) * 3 / 8)
    torch.testing.assert_close(result.lse, torch.tensor([[[math.log(8.0)]]], dtype=torch.float64))


def test_a_row_without_keys_has_output_0_and_the_sink_as_lse() -> None:
    sinks = torch.tensor([-3.0, 40.0])
    for hidden in (attention(ones(1, 2, 2, 4), ones(1, 2, 0, 4), ones(1, 2, 0, 3), sinks=sinks),
                   attention(ones(1, 2, 2, 4), ones(1, 2, 3, 4), ones(1, 2, 3, 3), sinks=sinks,
                             attn_mask=torch.zeros(2, 3, dtype=torch.bool))):  # fmt: skip
        assert hidden.lse is not None
        assert (hidden.output == 0).all()
        assert hidden.lse.tolist() == [[[-3.0, -3.0], [40.0, 40.0]]]


def test_a_sink_of_minus_infinity_is_none() -> None:
    call, corner = call_of(PROBLEMS[0])
    none = answer(call.but(sinks=None), corner)
    minus = answer(call.but(sinks=torch.full((4,), -torch.inf)), corner)
    assert torch.equal(none.output, minus.output)
    assert none.lse is not None
    assert minus.lse is not None
    assert torch.equal(none.lse, minus.lse)


@pytest.mark.parametrize("text", [text for text in PROBLEMS if "lengths" not in text])
def test_a_sink_is_one_more_key_of_value_0(text: str) -> None:
    call, corner = call_of(text)
    assert call.sinks is not None
    group = call.query.shape[1] // call.key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (call.key, call.value))
    shape = (*call.query.shape[:3], key.shape[2])
    visible = torch.ones(shape, dtype=torch.bool)
    if call.is_causal:
        visible = visible & torch.ones(shape[2:], dtype=torch.bool).tril()
    bias = torch.zeros(shape, dtype=torch.float64)
    if call.attn_mask is not None and call.attn_mask.dtype == torch.bool:
        visible = visible & call.attn_mask
    elif call.attn_mask is not None:
        bias = bias + call.attn_mask
    key, value, bias, visible = sinks_as_keys(key, value, bias, visible, call.sinks)
    with_key = attention(call.query, key, value, attn_mask=bias.masked_fill(~visible, -torch.inf), scale=call.scale)
    with_sink = answer(call, corner)
    torch.testing.assert_close(with_sink.output, with_key.output, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(with_sink.lse, with_key.lse, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("text", PROBLEMS)
def test_gradients_are_those_of_autograd(text: str) -> None:
    call, corner = call_of(text)
    names = [name for name in ("query", "key", "value", "attn_mask", "sinks") if is_differentiable(getattr(call, name))]
    leaves = {name: getattr(call, name).clone().requires_grad_() for name in names}
    result = answer(call.but(**leaves), corner)
    assert result.lse is not None
    arriving = (call.grad_output, torch.zeros_like(result.lse) if call.grad_lse is None else call.grad_lse)
    expected = torch.autograd.grad((result.output, result.lse), list(leaves.values()), arriving)
    found = gradients(call, corner)
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(getattr(found, name), gradient, rtol=1e-11, atol=1e-13)


def is_differentiable(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.dtype.is_floating_point


@pytest.mark.parametrize("text", PROBLEMS)
def test_tiles_give_the_same_forward_and_back(text: str) -> None:
    call, corner = call_of(text)
    options = call.options() | {"causal_alignment": corner, "tile": (2, 3)}
    tiled = flash_attention(call.query, call.key, call.value, **options)  # type: ignore[arg-type]
    plain = answer(call, corner)
    torch.testing.assert_close(tiled.output, plain.output, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(tiled.lse, plain.lse, rtol=1e-14, atol=1e-14)
    assert tiled.lse is not None
    assert call.grad_output is not None
    tensors = (call.query, call.key, call.value, tiled.output, tiled.lse, call.grad_output)
    back = flash_backward(*tensors, grad_lse=call.grad_lse, **options)  # type: ignore[arg-type]
    for found, expected in zip(back, gradients(call, corner), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_exact_oracle_agrees(text: str) -> None:
    call, corner = call_of(text)
    exact = {name: torch.from_numpy(array) for name, array in truth(call, corner).items()}
    result = answer(call, corner)
    torch.testing.assert_close(result.output, exact["output"], rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(result.lse, exact["lse"], rtol=1e-14, atol=1e-14)
    found = gradients(call, corner)
    assert found.sinks is not None
    for name in ("query", "key", "value", "sinks"):
        torch.testing.assert_close(getattr(found, name), exact[f"grad_{name}"], rtol=1e-11, atol=1e-13)


def test_the_budget_knows_the_sink() -> None:
    call, _ = call_of("hq=2/q=5/k=9/d=8/sinks=high/dtype=bfloat16")
    with_sink, without = error_budget(call), error_budget(call.but(sinks=None))
    assert (with_sink.output < 1e-6 * without.output).all()  # a weight of e^-30 leaves hardly an output to be off
    assert (with_sink.lse > 0).all()


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 2, 1, 1)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    tensors = ones(1, 2, 3, 4), ones(1, 2, 5, 4), ones(1, 2, 5, 4)
    for run in (attention, flash_attention):
        with pytest.raises(InputError, match=r"sinks is torch\.float32 .*: use floating numbers, \(2,\), one a head"):
            run(*tensors, sinks=torch.zeros(shape))


def test_integers_are_refused() -> None:
    with pytest.raises(InputError, match=r"sinks is torch\.int64"):
        attention(ones(1, 2, 3, 4), ones(1, 2, 5, 4), ones(1, 2, 5, 4), sinks=torch.zeros(2, dtype=torch.int64))
