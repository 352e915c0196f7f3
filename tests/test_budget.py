"""The error budget: honest kernels stay within it, coarse ones do not, and it sees the call as the reference does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from attnspec.conformance import budget as budget_module
from attnspec.conformance.budget import Budget, error_budget
from attnspec.reference.attention import answer
from attnspec.spec.call import Call
from attnspec.spec.dtypes import format_of
from attnspec.spec.errors import InputError

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
NARROW = [torch.bfloat16, torch.float16]


def call_of(q_len: int, k_len: int, dtype: torch.dtype, dim: int = 16, scores: float = 1.0, **options: Any) -> Call:
    """Return a call on normal numbers, 2 heads."""
    draw = torch.Generator().manual_seed(q_len + 7 * k_len)
    q, k, v = (torch.randn(1, 2, n, dim, generator=draw, dtype=torch.float64) for n in (q_len, k_len, k_len))
    return Call((q * scores).to(dtype), k.to(dtype), v.to(dtype), **options)


def ratio(call: Call, output: torch.Tensor, **options: Any) -> float:
    """Return the largest error / budget of an output."""
    return float(((output.double() - answer(call).output).abs() / error_budget(call, **options).output).max())


def same(a: Budget, b: Budget) -> bool:
    """Whether two budgets agree up to float64 rounding."""
    return all(torch.allclose(x, y, rtol=1e-6, atol=0) for x, y in ((a.output, b.output), (a.lse, b.lse)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k_len", [1, 5, 130, 700])
def test_torch_sdpa_stays_within_the_budget(dtype: torch.dtype, k_len: int) -> None:
    call = call_of(40, k_len, dtype, scores=3.0)
    assert ratio(call, F.scaled_dot_product_attention(call.query, call.key, call.value)) <= 1


@pytest.mark.parametrize("dtype", NARROW)
def test_the_budget_of_16_bit_kernels_is_tight(dtype: torch.dtype) -> None:
    call = call_of(64, 130, dtype, scores=3.0)
    assert ratio(call, F.scaled_dot_product_attention(call.query, call.key, call.value)) > 0.3


@pytest.mark.parametrize("dtype", NARROW)
def test_eager_is_within_its_own_class_and_not_within_fused(dtype: torch.dtype) -> None:
    call = call_of(64, 128, dtype, dim=64, scores=8.0)
    output = (call.query @ call.key.transpose(-1, -2) * 0.125).softmax(-1) @ call.value
    assert ratio(call, output, accuracy="eager") <= 1
    assert ratio(call, output) > 2


def test_tf32_inputs_in_a_float32_kernel_are_caught() -> None:
    call = call_of(64, 64, torch.float32, dim=64)
    q, k = (((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) for x in (call.query, call.key))
    assert ratio(call, F.scaled_dot_product_attention(q, k, call.value)) > 10


def test_a_short_log2e_in_a_float32_kernel_is_caught() -> None:
    call = call_of(256, 4, torch.float32, dim=8, scores=1.5)
    scores = call.query @ call.key.transpose(-1, -2) * 8**-0.5
    weights = torch.exp2((scores - scores.amax(-1, keepdim=True)) * 1.4427)
    assert ratio(call, weights / weights.sum(-1, keepdim=True) @ call.value) > 1


def test_a_sum_key_by_key_of_equal_terms_drifts_within_the_budget() -> None:
    """Rounding errors of equal terms are equal: here they pass the bound that holds for independent ones."""
    n, drifting = 2048, 70 / 97
    call = Call(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, n, 4), torch.full((1, 1, n, 1), drifting))
    total = torch.zeros(())
    for _ in range(n):
        total = total + call.value[0, 0, 0, 0]
    error = abs(float(total) / n - float(call.value[0, 0, 0, 0]))
    assert 6 * math.sqrt(n) * 2.0**-24 * drifting < error <= float(error_budget(call).output)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["fused", "eager"])
def test_a_row_that_sees_nothing_has_only_the_store_left(dtype: torch.dtype, accuracy: str) -> None:
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    budget = error_budget(call_of(3, 5, dtype, attn_mask=mask), accuracy=accuracy)
    fmt = format_of(dtype)
    tiny = fmt.smallest_subnormal / 2 if dtype == torch.float16 else fmt.smallest_normal
    assert budget.output[..., 1, :].max() <= 2 * tiny
    assert (budget.lse[..., 1] == 0).all()
    assert (budget.lse[..., 0] > 0).all()


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)])
def test_empty_lengths_have_a_budget(sizes: tuple[int, int]) -> None:
    call = call_of(*sizes, torch.float32)
    budget = error_budget(call)
    assert budget.output.shape == call.query.shape
    assert budget.lse.shape == call.query.shape[:3]


@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
def test_causal_is_the_triangle_as_a_mask(alignment: str) -> None:
    causal = error_budget(call_of(5, 9, torch.float32, is_causal=True), causal_alignment=alignment)
    triangle = torch.ones(5, 9, dtype=torch.bool).tril(4 if alignment == "lower_right" else 0)
    assert same(causal, error_budget(call_of(5, 9, torch.float32, attn_mask=triangle)))


def test_grouped_heads_and_a_broadcast_batch_are_their_expansion() -> None:
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 3)
    wide = [x.repeat_interleave(2, 1).expand(3, -1, -1, -1).contiguous() for x in (k, v)]
    assert same(error_budget(Call(q, k, v, enable_gqa=True)), error_budget(Call(q, wide[0], wide[1])))


@pytest.mark.parametrize("hidden", [1e30, math.inf, math.nan])
def test_hidden_keys_do_not_change_the_budget(hidden: float) -> None:
    mask = torch.tensor([True, True, False, True])
    call = call_of(3, 4, torch.float32, attn_mask=mask)
    key, value = call.key.clone(), call.value.clone()
    key[..., 2, :], value[..., 2, :] = 1e3, hidden
    assert same(error_budget(call), error_budget(Call(call.query, key, value, attn_mask=mask)))


@pytest.mark.parametrize("bias", [-1e9, -3e4, 0.0, 3e4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accuracy", ["fused", "eager"])
def test_the_budget_is_finite_for_any_finite_bias(bias: float, dtype: torch.dtype, accuracy: str) -> None:
    mask = torch.full((3, 4), max(bias, -6e4) if dtype == torch.float16 else bias, dtype=dtype)
    budget = error_budget(call_of(3, 4, dtype, scores=20.0, attn_mask=mask), accuracy=accuracy)
    assert budget.lse.isfinite().all()
    assert budget.output.isfinite().all()
    assert (budget.output > 0).all()


def test_the_budget_scales_with_the_values() -> None:
    call = call_of(5, 20, torch.float32)
    larger = Call(call.query, call.key, call.value * 2.0**100)
    assert torch.allclose(error_budget(larger).output, error_budget(call).output * 2.0**100, rtol=1e-6)


def test_blocks_do_not_change_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of(37, 50, torch.bfloat16)
    whole = error_budget(call)
    monkeypatch.setattr(budget_module, "BLOCK_ELEMENTS", 3000)
    assert same(whole, error_budget(call))


def test_a_float32_result_of_a_16_bit_kernel_has_no_store() -> None:
    call = call_of(8, 64, torch.bfloat16)
    assert (error_budget(call, store=False).output < error_budget(call).output).all()


def test_float64_is_exact_whatever_class_is_asked_but_eager() -> None:
    call = call_of(4, 9, torch.float64)
    assert same(error_budget(call), error_budget(call, accuracy="exact"))


def test_an_unknown_class_is_an_error() -> None:
    with pytest.raises(InputError, match="fused, eager, exact"):
        error_budget(call_of(1, 1, torch.float32), accuracy="sloppy")
    with pytest.raises(InputError, match="float64"):
        error_budget(call_of(1, 1, torch.float32), accuracy="exact")
