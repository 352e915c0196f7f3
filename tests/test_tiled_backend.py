"""The tiled backend: answers within the budget, gradients of its own backward pass, and memory that grows linearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bench.live_bytes import LiveBytes, exponent

from attnspec.conformance.budget import error_budget
from attnspec.golden.inputs import make_call
from attnspec.implementations import torch_eager
from attnspec.implementations.tiled import Tiled, backend
from attnspec.reference.attention import answer, attention
from attnspec.spec.call import Call
from attnspec.spec.capabilities import FEATURES
from attnspec.spec.dtypes import FORMATS
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

SMALL = Tiled(tile=(8, 16))
PROBLEMS = (
    "q=17/k=33/d=16",
    "q=1/k=70/d=64/causal",
    "b=2/hq=6/hkv=2/q=9/k=20/d=8/dv=24/mask=bool.b11k.padding",
    "b=3/bkv=1/hq=4/hkv=1/q=7/k=12/d=8/mask=float.hqk.bias/causal",
    "q=12/k=40/d=8/mask=bool.qk.empty_rows/scale=-0.4",
    "hq=2/q=12/k=40/d=8/mask=bool.hqk.empty_head",
    "q=40/k=70/d=32/scores=8/keys=growing",
    "q=20/k=33/d=8/mask=float.qk.sentinel",
    "q=4/k=0/d=8",
    "q=0/k=4/d=8",
)
DIFFERENTIABLE = tuple(text for text in PROBLEMS if "sentinel" not in text and "=0/" not in text)


def leaves(call: Call) -> list[torch.Tensor]:
    """Return the tensors of a call that have a gradient, as leaves."""
    additive = call.attn_mask is not None and call.attn_mask.dtype != torch.bool
    tensors = (call.query, call.key, call.value, *([call.attn_mask] if additive else []))
    return [tensor.detach().requires_grad_() for tensor in tensors]


def gradients(
    kernel: Callable[..., Any], call: Call, dtype: torch.dtype, grads: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of a call by autograd, its tensors converted to a dtype; empty rows give the lse none."""
    inputs = [tensor.to(dtype).detach().requires_grad_() for tensor in leaves(call)]
    mask = {"attn_mask": inputs[3]} if len(inputs) == 4 else {}
    output, lse = kernel(*inputs[:3], **(call.options() | mask))[:2]
    empty = lse == -torch.inf
    seen = (output, lse.masked_fill(empty, 0.0))
    return torch.autograd.grad(
        seen, inputs, (grads[0].to(output.dtype), grads[1].to(lse.dtype).masked_fill(empty, 0.0))
    )


def grads_of_results(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Return normal gradients of output and lse, the same each time, exact in every dtype."""
    generator = torch.Generator().manual_seed(0)
    rows = tuple(call.query.shape[:3])
    draws = [torch.randn(shape, generator=generator).bfloat16() for shape in ((*rows, call.value.shape[3]), rows)]
    return tuple(draw.half().to(call.query.dtype) for draw in draws)  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("text", PROBLEMS)
def test_answers_stay_within_the_budget(text: str, dtype: str) -> None:
    problem = Problem.parse(f"{text}/dtype={dtype}")
    call = make_call(problem).but(return_lse=True)
    output, lse = SMALL(call.query, call.key, call.value, **call.options())
    truth, budget = answer(call), error_budget(call)
    assert truth.lse is not None
    assert output.dtype == call.query.dtype
    assert lse.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    assert ((output.double() - truth.output).abs() <= budget.output).all()
    empty = truth.lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty)
    assert ((lse.double() - truth.lse).abs() <= budget.lse)[~empty].all()


@pytest.mark.parametrize("text", DIFFERENTIABLE)
def test_gradients_are_those_of_the_reference(text: str) -> None:
    call = make_call(Problem.parse(f"{text}/dtype=float64"))
    kernel_call = call.but(return_lse=True)
    grads = grads_of_results(call)
    expected = gradients(attention, call, torch.float64, grads)
    found = gradients(SMALL, kernel_call, torch.float64, grads)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float16", 1e-2), ("bfloat16", 6e-2)])
@pytest.mark.parametrize("text", DIFFERENTIABLE)
def test_gradients_in_narrow_dtypes(text: str, dtype: str, tolerance: float) -> None:
    call = make_call(Problem.parse(f"{text}/dtype={dtype}"))
    grads = grads_of_results(call)
    expected = gradients(attention, call, torch.float64, grads)
    found = gradients(SMALL, call.but(return_lse=True), call.query.dtype, grads)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == call.query.dtype
        assert (got.double() - want).norm() <= tolerance * want.norm()


def test_first_and_second_derivatives_pass_gradcheck() -> None:
    problem = Problem.parse("b=2/bkv=1/hq=4/hkv=2/q=3/k=5/d=2/mask=float.h1k.bias/causal/dtype=float64")
    call = make_call(problem).but(return_lse=True)
    kernel = Tiled(tile=(2, 3))

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor) -> Any:
        return kernel(query, key, value, **(call.options() | {"attn_mask": attn_mask}))

    assert torch.autograd.gradcheck(run, leaves(call))
    assert torch.autograd.gradgradcheck(run, leaves(call))


def test_the_output_without_the_lse_is_the_same() -> None:
    call = make_call(Problem.parse("q=9/k=20/d=8/dtype=bfloat16"))
    output, _ = backend(call.query, call.key, call.value, return_lse=True)
    assert torch.equal(backend(call.query, call.key, call.value), output)


def test_weights_are_rounded_once_to_the_storage_dtype() -> None:
    query, key = torch.tensor([1.0]).reshape(1, 1, 1, 1), torch.tensor([0.0, -1.0]).reshape(1, 1, 2, 1)
    value = torch.tensor([0.0, 1.0]).reshape(1, 1, 2, 1)
    weight = torch.tensor(-1.0).exp()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        output = backend(query.to(dtype), key.to(dtype), value.to(dtype), scale=1.0)
        assert output.item() == (weight.to(dtype).float() / (1 + weight)).to(dtype).item()


def growth(kernel: Callable[..., Any]) -> float:
    """Return the exponent with which the memory of a forward and a backward pass grows."""
    lengths, peaks = (64, 128, 256), []
    for length in lengths:
        call = make_call(Problem.parse(f"b=2/hq=4/hkv=2/q={length}/k={length}/d=8/causal"))
        inputs = leaves(call)
        with LiveBytes() as memory:
            torch.autograd.grad(kernel(*inputs, **call.options()).sum(), inputs)
        peaks.append(memory.peak)
    return exponent(lengths, peaks)


def test_memory_grows_linearly_and_that_of_eager_attention_does_not() -> None:
    assert growth(Tiled(tile=(32, 32))) == pytest.approx(1.0, abs=0.05)
    assert growth(torch_eager.backend) > 1.7


def test_keys_are_not_expanded_to_the_query_heads() -> None:
    call = make_call(Problem.parse("hq=32/hkv=2/q=1/k=256/d=32"))
    with LiveBytes() as memory:
        Tiled(tile=(16, 16))(call.query, call.key, call.value, **call.options())
    expanded = 32 * 256 * 32 * 4
    assert memory.peak < expanded / 4


def test_everything_is_declared() -> None:
    assert backend.name == "tiled"
    assert set(backend.capabilities.features) == set(FEATURES) - {"dropout_p"}
    assert backend.capabilities.accuracy == "fused"


@pytest.mark.parametrize(
    "shapes", [((1, 3, 4, 8), (1, 2, 6, 8)), ((1, 4, 4, 8), (1, 2, 6, 8)), ((1, 2, 4, 8), (1, 2, 6, 4))]
)
def test_calls_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    query, key = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(InputError):
        backend(query, key, key)
