"""The error budget of gradients: honest backward passes stay within it, coarse ones do not; it is always a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from attnspec.conformance import gradient_budget as budget_module
from attnspec.conformance.gradient_budget import GradientBudget, gradient_budget
from attnspec.reference.attention import answer
from attnspec.spec.call import Call
from attnspec.spec.errors import InputError

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
NARROW = [torch.bfloat16, torch.float16]
INPUTS = ("query", "key", "value", "attn_mask")
Round = Callable[[torch.Tensor], torch.Tensor]


def call_of(q_len: int, k_len: int, dtype: torch.dtype, dim: int = 16, scores: float = 1.0, **options: Any) -> Call:
    """Return a call on normal numbers, 2 heads."""
    draw = torch.Generator().manual_seed(q_len + 7 * k_len)
    q, k, v = (torch.randn(1, 2, n, dim, generator=draw, dtype=torch.float64) for n in (q_len, k_len, k_len))
    return Call((q * scores).to(dtype), k.to(dtype), v.to(dtype), **options)


def grad_of(call: Call) -> torch.Tensor:
    """Return a normal gradient of the output."""
    draw = torch.Generator().manual_seed(5)
    shape = (*call.query.shape[:3], call.value.shape[-1])
    return torch.randn(shape, generator=draw, dtype=torch.float64).to(call.query.dtype)


def leaves_of(call: Call, dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """Return copies of the call's floating tensors that require a gradient."""
    tensors = {name: getattr(call, name) for name in INPUTS}
    floating = {name: x for name, x in tensors.items() if x is not None and x.is_floating_point()}
    return {name: x.clone().to(dtype or x.dtype).requires_grad_() for name, x in floating.items()}


def truth_of(call: Call, grad: torch.Tensor, grad_lse: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """Return the gradients by autograd through the float64 reference."""
    leaves = leaves_of(call, torch.float64)
    result = answer(call.but(**leaves))
    assert result.lse is not None
    total = (result.output * grad.double()).sum()
    total = total if grad_lse is None else total + (result.lse * grad_lse.double()).sum()
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))


def sdpa(call: Call, grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of torch's own attention."""
    leaves = leaves_of(call)
    query, key, value, mask = (leaves.get(name, getattr(call, name)) for name in INPUTS)
    output = F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=call.is_causal, scale=call.scale, enable_gqa=call.enable_gqa
    )
    return dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), grad), strict=True))


def by_hand(
    call: Call,
    grad: torch.Tensor,
    *,
    weights: Round | None = None,
    dscores: Round | None = None,
    delta: Round = lambda x: x,
    tile: int = 4096,
    accumulator: Round = lambda x: x,
    scale: float | None = None,
    grad_lse: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Return the gradients by flash-attention's formulas in float32, one head to a query head and no mask."""
    q, k, v, g = (x.float() for x in (call.query, call.key, call.value, grad))
    factor = q.shape[-1] ** -0.5
    s = q @ k.mT * factor
    p = torch.exp(s - s.logsumexp(-1, keepdim=True))
    stored = through(call.query.dtype)
    output = stored((weights or stored)(p) @ v)
    d = delta((g * output).sum(-1, keepdim=True))
    d = d if grad_lse is None else d - grad_lse[..., None]
    ds = (dscores or stored)(p * (g @ v.mT - d))
    p = (weights or stored)(p)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for i in range(0, q.shape[-2], tile):
        rows = slice(i, i + tile)
        dk = accumulator(dk + ds[..., rows, :].mT @ q[..., rows, :])
        dv = accumulator(dv + p[..., rows, :].mT @ g[..., rows, :])
    factor = factor if scale is None else scale
    grads = {"query": ds @ k * factor, "key": dk * factor, "value": dv}
    return {name: x.to(call.query.dtype) for name, x in grads.items()}


def through(dtype: torch.dtype) -> Round:
    """Return what rounds float32 to `dtype` and comes back."""
    return lambda x: x.to(dtype).float()


def ratios(
    call: Call, grads: dict[str, torch.Tensor], grad: torch.Tensor, grad_lse: torch.Tensor | None = None, **options: Any
) -> dict[str, float]:
    """Return the largest error / budget of each gradient."""
    truth, budget = truth_of(call, grad, grad_lse), gradient_budget(call, grad, grad_lse, **options)
    return {name: float(((x.double() - truth[name]).abs() / getattr(budget, name)).max()) for name, x in grads.items()}


def same(a: GradientBudget, b: GradientBudget) -> bool:
    """Whether two budgets agree up to float64 rounding."""
    pairs = [(getattr(a, name), getattr(b, name)) for name in INPUTS if getattr(a, name) is not None]
    return all(torch.allclose(x, y, rtol=1e-6, atol=0) for x, y in pairs)


def are_numbers(budget: GradientBudget) -> bool:
    """Whether all budgets are finite and none is negative."""
    tensors = [x for x in (getattr(budget, name) for name in INPUTS) if x is not None]
    return all(bool(x.isfinite().all()) and bool((x >= 0).all()) for x in tensors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k_len", [1, 5, 130, 700])
@pytest.mark.parametrize("causal", [False, True])
def test_torch_sdpa_stays_within_the_budget(dtype: torch.dtype, k_len: int, causal: bool) -> None:
    """With 24 rows; beyond 32 torch's CPU kernel adds up sums over rows that it has stored in 16 bits."""
    call = call_of(24, k_len, dtype, scores=3.0, is_causal=causal)
    grad = grad_of(call)
    assert max(ratios(call, sdpa(call, grad), grad).values()) <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("sizes", [(3, 7), (64, 64), (500, 33)])
def test_the_formulas_of_flash_attention_stay_within_the_budget(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    call = call_of(*sizes, dtype, scores=2.0)
    grad = grad_of(call)
    assert max(ratios(call, by_hand(call, grad), grad).values()) <= 1


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("k_len", [12, 130, 600])
def test_the_budget_of_16_bit_kernels_is_tight(dtype: torch.dtype, k_len: int) -> None:
    call = call_of(64, k_len, dtype, dim=32, scores=2.0)
    grad = grad_of(call)
    assert max(ratios(call, by_hand(call, grad), grad).values()) > 0.2


@pytest.mark.parametrize("dtype", NARROW)
def test_eager_is_within_its_own_class_and_not_within_fused(dtype: torch.dtype) -> None:
    call = call_of(64, 128, dtype, dim=64, scores=8.0)
    grad, leaves = grad_of(call), leaves_of(call)
    output = (leaves["query"] @ leaves["key"].mT * 0.125).softmax(-1) @ leaves["value"]
    grads = dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), grad), strict=True))
    assert max(ratios(call, grads, grad, accuracy="eager").values()) <= 1
    assert max(ratios(call, grads, grad).values()) > 2


def test_eager_rows_of_finite_sentinels_stay_within_the_budget() -> None:
    """-1e9 + s is -1e9 in bfloat16: what was any softmax becomes the uniform one."""
    call = call_of(8, 12, torch.bfloat16, scores=2000.0)
    grad, leaves = grad_of(call), leaves_of(call)
    mask = torch.full((8, 12), -1e9, dtype=torch.bfloat16)
    output = (leaves["query"] @ leaves["key"].mT * 0.25 + mask).softmax(-1) @ leaves["value"]
    grads = dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), grad), strict=True))
    assert max(ratios(call.but(attn_mask=mask), grads, grad, accuracy="eager").values()) <= 1


BFLOAT16, FLOAT16 = through(torch.bfloat16), through(torch.float16)
FAULTS: dict[str, dict[str, Any]] = {
    "no delta": {"delta": torch.zeros_like},
    "no scale": {"scale": 1.0},
    "dS in float8": {"dscores": through(torch.float8_e4m3fn)},
    "P in float8": {"weights": through(torch.float8_e4m3fn)},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_above_the_budget(dtype: torch.dtype, fault: str) -> None:
    call = call_of(64, 64, dtype, dim=64, scores=2.0)
    grad = grad_of(call)
    assert max(ratios(call, by_hand(call, grad, **FAULTS[fault]), grad).values()) > 2


@pytest.mark.parametrize("dtype", NARROW)
def test_a_sum_over_many_rows_in_bfloat16_is_above_the_budget(dtype: torch.dtype) -> None:
    call = call_of(1024, 32, dtype)
    grad = grad_of(call).abs()
    assert max(ratios(call, by_hand(call, grad, tile=32), grad).values()) <= 1
    assert max(ratios(call, by_hand(call, grad, tile=32, accumulator=BFLOAT16), grad).values()) > 1


@pytest.mark.parametrize("step", ["delta", "dscores", "weights"])
def test_a_float16_step_in_a_float32_kernel_is_above_the_budget(step: str) -> None:
    call = call_of(64, 64, torch.float32, dim=64, scores=2.0)
    grad = grad_of(call)
    assert max(ratios(call, by_hand(call, grad, **{step: FLOAT16}), grad).values()) > 5


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("heads", [1, 8])
def test_one_key_leaves_the_value_what_storing_rounds(dtype: torch.dtype, heads: int) -> None:
    """p = 1 and dV = dO = 3, or 0 as the sum of 3 and -3: p and dV of a head are rounded, exp and the lse are off."""
    key, value = torch.ones(2, 1, 1, 1, 4, dtype=dtype).unbind()
    call = Call(torch.zeros(1, heads, 1, 4, dtype=dtype), key, value, enable_gqa=True)
    grad = torch.tensor([3.0, -3.0] * 4)[:heads].view(1, heads, 1, 1).expand(1, heads, 1, 4).to(dtype)
    expected = 3.0 * heads * (torch.finfo(dtype).eps + 2.0**-13 + 2.0**-12)
    assert float(gradient_budget(call, grad).value.max()) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 20, 30), (20, 30), (1, 30), (20, 1)])
def test_the_gradient_of_a_broadcast_bias_stays_within_the_budget(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    call = call_of(20, 30, dtype, attn_mask=bias)
    grad = grad_of(call)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found = ratios(call, sdpa(call, grad), grad)
    assert found["attn_mask"] <= 1


def test_subnormal_weights_may_all_round_the_same_way() -> None:
    """Scores of 0 and -17: p = 4.1e-8 of the second key rounds to 6e-8 in every row."""
    query, key = torch.ones(1, 1, 200, 1), torch.tensor([0.0, -17.0]).view(1, 1, 2, 1)
    call = Call(query.half(), key.half(), torch.ones(1, 1, 2, 1).half())
    grad = torch.ones(1, 1, 200, 1).half()
    assert 0.1 < max(ratios(call, by_hand(call, grad), grad).values()) <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_gradient_of_the_lse_stays_within_the_budget_and_dropping_it_does_not(dtype: torch.dtype) -> None:
    call, draw = call_of(33, 40, dtype), torch.Generator().manual_seed(3)
    grad, grad_lse = grad_of(call), torch.randn(1, 2, 33, generator=draw)
    assert max(ratios(call, by_hand(call, grad, grad_lse=grad_lse), grad, grad_lse).values()) <= 1
    assert max(ratios(call, by_hand(call, grad), grad, grad_lse).values()) > 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_heads_and_a_broadcast_batch_stay_within_the_budget(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(2)
    sizes = ((3, 4, 9, 8), (1, 2, 12, 8), (1, 2, 12, 5))
    q, k, v = (torch.randn(size, generator=draw, dtype=torch.float64).to(dtype) for size in sizes)
    call = Call(q, k, v, enable_gqa=True)
    grad, leaves = grad_of(call), leaves_of(call)
    wide = [leaves[name].expand(3, -1, -1, -1) for name in ("key", "value")]
    output = F.scaled_dot_product_attention(leaves["query"], *wide, enable_gqa=True)
    grads = dict(zip(leaves, torch.autograd.grad(output, list(leaves.values()), grad), strict=True))
    assert max(ratios(call, grads, grad).values()) <= 1
    query = gradient_budget(Call(q, *(x.repeat_interleave(2, 1).expand(3, -1, -1, -1) for x in (k, v))), grad).query
    assert torch.allclose(query, gradient_budget(call, grad).query, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["fused", "eager"])
def test_a_row_that_sees_nothing_has_only_the_store_left(dtype: torch.dtype, accuracy: str) -> None:
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = mask[:, 2] = False
    call = call_of(3, 5, dtype, attn_mask=mask)
    budget = gradient_budget(call, grad_of(call), accuracy=accuracy)
    tiny = 2.0**-25 if dtype == torch.float16 else torch.finfo(dtype).smallest_normal
    for empty in (budget.query[..., 1, :], budget.key[..., 2, :], budget.value[..., 2, :]):
        assert (empty == tiny).all()
    assert budget.attn_mask is None
    assert (budget.query[..., 0, :] > tiny).all()


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)])
def test_empty_lengths_have_a_budget(sizes: tuple[int, int]) -> None:
    call = call_of(*sizes, torch.float32)
    budget = gradient_budget(call, grad_of(call))
    assert [budget.query.shape, budget.key.shape] == [call.query.shape, call.key.shape]
    assert are_numbers(budget)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["fused", "eager"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_the_budget_is_a_number_whatever_the_inputs_hold(dtype: torch.dtype, accuracy: str, wrong: float) -> None:
    call = call_of(4, 6, dtype, attn_mask=torch.zeros(4, 6, dtype=dtype))
    grad, grad_lse = grad_of(call), torch.ones(1, 2, 4)
    for x in (call.query, call.key, call.value, call.attn_mask, grad, grad_lse):
        assert x is not None
        x[..., 1, 2] = wrong
    assert are_numbers(gradient_budget(call, grad, grad_lse, accuracy=accuracy))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["fused", "eager"])
def test_the_budget_is_a_number_for_the_largest_inputs(dtype: torch.dtype, accuracy: str) -> None:
    call = call_of(4, 6, dtype)
    largest = torch.finfo(dtype).max
    huge = Call(*(x.sign() * largest for x in (call.query, call.key, call.value)), scale=1.0)
    assert are_numbers(gradient_budget(huge, grad_of(call).sign() * largest, accuracy=accuracy))


@pytest.mark.parametrize("hidden", [1e30, math.inf, math.nan])
def test_hidden_keys_do_not_change_the_budget(hidden: float) -> None:
    mask = torch.tensor([True, True, False, True])
    call = call_of(3, 4, torch.float32, attn_mask=mask)
    key, value = call.key.clone(), call.value.clone()
    key[..., 2, :], value[..., 2, :] = 1e3, hidden
    grad = grad_of(call)
    assert same(gradient_budget(call, grad), gradient_budget(call.but(key=key, value=value), grad))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_budget_scales_with_the_gradient_and_the_values(dtype: torch.dtype) -> None:
    call = call_of(5, 20, dtype)
    grad = grad_of(call)
    one = gradient_budget(call, grad)
    larger = gradient_budget(call, grad * 2.0**40)
    values = gradient_budget(call.but(value=call.value * 2.0**40), grad)
    for name in ("query", "key", "value"):
        assert torch.allclose(getattr(larger, name), getattr(one, name) * 2.0**40, rtol=1e-6)
    for name in ("query", "key"):
        assert torch.allclose(getattr(values, name), getattr(one, name) * 2.0**40, rtol=1e-6)
    assert torch.equal(values.value, one.value)


@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
def test_causal_is_the_triangle_as_a_mask(alignment: str) -> None:
    causal = call_of(5, 9, torch.float32, is_causal=True)
    grad = grad_of(causal)
    triangle = torch.ones(5, 9, dtype=torch.bool).tril(4 if alignment == "lower_right" else 0)
    masked = call_of(5, 9, torch.float32, attn_mask=triangle)
    assert same(gradient_budget(causal, grad, causal_alignment=alignment), gradient_budget(masked, grad))


def test_blocks_do_not_change_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of(37, 50, torch.bfloat16, attn_mask=torch.zeros(1, 50, dtype=torch.bfloat16))
    grad = grad_of(call)
    whole = gradient_budget(call, grad)
    monkeypatch.setattr(budget_module, "BLOCK_ELEMENTS", 500)
    assert same(whole, gradient_budget(call, grad))


def test_what_does_not_fit_is_an_error() -> None:
    call = call_of(2, 3, torch.float32)
    grad = grad_of(call)
    with pytest.raises(InputError, match="use the shape of the output"):
        gradient_budget(call, grad[..., :1])
    with pytest.raises(InputError, match="use the shape of the lse"):
        gradient_budget(call, grad, torch.zeros(1, 2, 3))
    with pytest.raises(InputError, match="fused, eager, exact"):
        gradient_budget(call, grad, accuracy="sloppy")
    with pytest.raises(InputError, match="float64"):
        gradient_budget(call, grad, accuracy="exact")
