"""The gradient of slopes, and ALiBi beside another bias: by hand, autograd, tiles, the exact oracle, the budget."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from exact_calls import DIGITS, fraction_of

from attnspec.conformance import gradient_budget as budget_module
from attnspec.conformance.gradient_budget import GradientBudget, gradient_budget
from attnspec.conformance.gradient_sums import OverDistances, OverSlots
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.golden.regenerate import truth
from attnspec.reference.alibi import distance
from attnspec.reference.attention import answer
from attnspec.reference.backward import backward, gradients
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.exact import backward as exact_module
from attnspec.reference.exact.alibi import exact_bias
from attnspec.reference.exact.backward import backward as exact_backward
from attnspec.reference.exact.rounding import round_to
from attnspec.reference.flash import flash_attention, flash_backward
from attnspec.spec.call import Call
from attnspec.spec.dtypes import FLOAT64
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

PROBLEMS = tuple(
    f"{text}/dtype=float64/seed=3"
    for text in (
        "b=2/hq=4/hkv=2/q=5/k=7/d=8/dv=3/alibi=symmetric.learned/causal/grad=lse",
        "b=2/hq=2/q=7/k=5/d=4/alibi=signed.lower_right.learned/mask=float.1hqk.random/grad=lse",
        "b=2/hq=2/q=4/k=6/d=4/alibi=symmetric.bh.learned/mask=bool.bhqk.empty_rows/grad",
        "b=2/hq=2/q=4/k=7/d=4/alibi=symmetric.upper_left.learned/causal=lower_right/grad=lse",
        "b=2/hq=2/q=7/k=4/d=4/alibi=signed.lower_right.bh.learned/causal/softcap=2/grad=lse",
        "b=3/hq=2/q=3/k=6/d=4/alibi=symmetric.learned/lengths=zero/causal=lower_right/sinks/grad=lse",
        "b=3/hq=2/q=3/k=6/d=4/alibi=symmetric.upper_left.learned/lengths=ragged/causal=lower_right/grad",
        "b=2/hq=2/q=5/k=7/d=4/alibi=signed.learned/window=2.1/mask=float.qk.bias/sinks/softcap=2/grad=lse",
    )
)


def call_of(text: str) -> tuple[Call, str]:
    problem = Problem.parse(text)
    return make_call(problem), problem.corner


@pytest.fixture
def argument(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave every entry to the exact argument."""
    monkeypatch.setattr(exact_module, "round_ball", lambda ball, fmt: None)


def array(*numbers: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(numbers, dtype=np.float64).reshape(1, 1, -1, 1)


# ---------------------------------------------------------------- the reference


def test_two_keys_by_hand() -> None:
    """Weights 1/2 each, dP = (0, 1), delta = 1/2, dS = (-1/4, 1/4); distances of row 0 are 0 and 1, of row 1 1 and
    0."""
    query, value = torch.zeros(1, 1, 2, 1), torch.tensor([[[[0.0], [1.0]]]])
    slopes = torch.zeros(1)
    first = torch.tensor([[[[1.0], [0.0]]]])  # the loss is that of one row alone
    for grad_output, expected in ((first, -0.25), (first.flip(2), 0.25), (first + first.flip(2), 0.0)):
        found = backward(query, torch.zeros(1, 1, 2, 1), value, grad_output, alibi_slopes=slopes)
        assert found.alibi_slopes is not None
        assert found.alibi_slopes.tolist() == [expected]


def test_slopes_of_one_head_take_what_all_batch_elements_give() -> None:
    call, corner = call_of(PROBLEMS[0])
    assert call.alibi_slopes is not None
    alone = gradients(call.but(alibi_slopes=call.alibi_slopes.expand(2, 4)), corner).alibi_slopes
    together = gradients(call, corner).alibi_slopes
    assert alone is not None
    torch.testing.assert_close(together, alone.sum(0), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("text", PROBLEMS)
def test_gradients_are_those_of_autograd(text: str) -> None:
    call, corner = call_of(text)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in call.differentiable().items()}
    result = answer(call.but(**leaves), corner)
    assert result.lse is not None
    arriving = (call.grad_output, torch.zeros_like(result.lse) if call.grad_lse is None else call.grad_lse)
    expected = torch.autograd.grad((result.output, result.lse), list(leaves.values()), arriving)
    found = gradients(call, corner)
    for name, gradient in zip(leaves, expected, strict=True):
        mine = getattr(found, name).to(gradient.dtype)  # autograd rounds that of slopes of float32 to float32
        tolerance = 1e-11 if gradient.dtype == torch.float64 else 1e-6
        torch.testing.assert_close(mine, gradient, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("text", PROBLEMS)
def test_tiles_give_the_same_forward_and_back(text: str) -> None:
    call, corner = call_of(text)
    options: dict[str, Any] = call.options() | {"causal_alignment": corner, "tile": (2, 3)}
    options |= {"alibi_form": call.alibi_form, "alibi_alignment": call.alibi_alignment}
    tiled, plain = flash_attention(call.query, call.key, call.value, **options), answer(call, corner)
    torch.testing.assert_close(tiled.output, plain.output, rtol=1e-13, atol=1e-15)
    assert tiled.lse is not None
    assert call.grad_output is not None
    tensors = (call.query, call.key, call.value, tiled.output, tiled.lse, call.grad_output)
    back = flash_backward(*tensors, grad_lse=call.grad_lse, **options)
    for found, expected in zip(back, gradients(call, corner), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


def test_tiles_refuse_another_alignment() -> None:
    tensors = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1)
    with pytest.raises(InputError, match="alibi_alignment is 'middle': use one of upper_left, lower_right"):
        flash_attention(*tensors, alibi_slopes=torch.ones(1), alibi_alignment="middle")


# ---------------------------------------------------------------- the exact oracle


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_exact_oracle_agrees(text: str) -> None:
    call, corner = call_of(text)
    exact = {name: torch.from_numpy(array) for name, array in truth(call, corner).items()}
    result, found = answer(call, corner), gradients(call, corner)
    torch.testing.assert_close(result.output, exact["output"], rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(result.lse, exact["lse"], rtol=1e-14, atol=1e-14)
    assert {name.removeprefix("grad_") for name in exact if name.startswith("grad_")} == set(call.differentiable())
    for name in call.differentiable():
        torch.testing.assert_close(getattr(found, name), exact[f"grad_{name}"], rtol=1e-11, atol=1e-13, msg=name)


@pytest.mark.parametrize("text", [text for text in PROBLEMS if "softcap" not in text])
def test_the_exact_argument_gives_what_balls_do(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, corner = call_of(text)
    by_balls = truth(call, corner)["grad_alibi_slopes"]
    monkeypatch.setattr(exact_module, "round_ball", lambda ball, fmt: None)
    assert truth(call, corner)["grad_alibi_slopes"].tobytes() == by_balls.tobytes()


@pytest.mark.usefixtures("argument")
def test_equal_scores_are_rounded_from_exact_fractions() -> None:
    """Slopes and scale of 0: weights 1/3 in each row; dP, delta and the distances are whole numbers or thirds."""
    value, flow = array(1.0, 5.0, -3.0), array(2.0, 7.0)  # v_j, do_i
    found = exact_backward(array(1.0, 1.0), array(0.0, 0.0, 0.0), value, flow, alibi_slopes=np.zeros(1), scale=0.0)
    far = [[0, 1, 2], [1, 0, 1]]
    mean = Fraction(1 + 5 - 3, 3)
    terms = [
        Fraction(1, 3) * do * (v - mean) * d
        for do, row in zip((2, 7), far, strict=True)
        for v, d in zip((1, 5, -3), row, strict=True)
    ]
    assert found.alibi_slopes is not None
    assert found.alibi_slopes.tolist() == [round_to(-sum(terms, Fraction(0)), FLOAT64)]


def test_the_oracle_tells_none_of_slopes_that_ask_for_none() -> None:
    call, corner = call_of(PROBLEMS[0])
    assert "grad_alibi_slopes" in truth(call, corner)
    assert "grad_alibi_slopes" not in truth(call.but(learned_slopes=False), corner)


def test_a_bias_beside_alibi_keeps_what_float64_does_not_hold() -> None:
    """1 - 2^-70 is no float64 number: two keys of scores 1 and 1 - 2^-70 and values 1 and -1 give tanh(2^-71), and 0
    if the sum is rounded."""
    zero, value = array(0.0), array(1.0, -1.0)
    options: dict[str, Any] = {"attn_mask": np.ones((1, 2)), "alibi_slopes": np.array([2.0**-70])}
    result = exact_attention(zero, array(0.0, 0.0), value, **options)
    with mpmath.workdps(DIGITS):
        expected = round_to(fraction_of(mpmath.tanh(mpmath.mpf(2) ** -71)), FLOAT64)
    assert result.output.item() == expected == 2.0**-71
    capped = exact_attention(zero, array(0.0, 0.0), value, softcap=2.0, **options)
    assert capped.output.item() == expected
    back = exact_backward(zero, array(0.0, 0.0), value, array(1.0), **options)
    assert back.attn_mask is not None
    assert back.alibi_slopes is not None
    assert back.attn_mask.sum() == 0
    assert back.alibi_slopes.item() == back.attn_mask[0, 0]  # distances 0 and 1; what one key gains the other loses


@pytest.mark.parametrize("slope", [0.1, -1 / 3, 2.0**-1074, 1e300])
def test_any_slope_times_a_distance_is_exact(slope: float) -> None:
    far = distance(3, 5, form="signed").numpy()[0, 0]
    found = exact_bias(slope, far).fractions()
    assert found == [[-Fraction(slope) * int(d) for d in row] for row in far]


@pytest.mark.parametrize(
    ("slopes", "message"),
    [
        (np.ones(3), r"alibi_slopes has shape \(3,\): use \(1,\) or \(1, 1\)"),
        (np.ones(1, dtype=np.int64), "alibi_slopes has dtype int64"),
        (np.array([np.inf]), "alibi_slopes holds a NaN or an infinity"),
    ],
)
def test_the_oracle_refuses_slopes_that_do_not_fit(slopes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        exact_attention(array(0.0), array(0.0), array(1.0), alibi_slopes=slopes)


# ---------------------------------------------------------------- the budget


def of_slopes(call: Call, corner: str, accuracy: str = "fused") -> torch.Tensor:
    assert call.grad_output is not None
    found = gradient_budget(call, call.grad_output, call.grad_lse, causal_alignment=corner, accuracy=accuracy)
    assert found.alibi_slopes is not None
    return found.alibi_slopes


def test_a_distance_of_1_everywhere_is_a_bias_that_all_slots_share() -> None:
    terms = torch.randn(2, 3, 5, dtype=torch.float64)
    far, slots = OverDistances(torch.ones_like(terms)), OverSlots(True, True)
    for name in ("total", "square", "absolute", "row_square"):
        torch.testing.assert_close(getattr(far, name)(terms), getattr(slots, name)(terms))
    assert torch.equal(far.count(terms > 0), slots.count(terms > 0))
    assert bool((far.row_absolute(terms) <= slots.row_absolute(terms)).all())


@pytest.mark.parametrize("text", PROBLEMS)
def test_rows_and_heads_taken_together_do_not_change_the_budget(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, corner = call_of(text)
    whole = of_slopes(call, corner)
    assert call.alibi_slopes is not None
    assert whole.shape == call.alibi_slopes.shape
    assert bool((whole.isfinite() & (whole > 0)).all())
    monkeypatch.setattr(budget_module, "HEADS_ELEMENTS", 1)
    monkeypatch.setattr(budget_module, "BLOCK_ELEMENTS", 10)
    torch.testing.assert_close(of_slopes(call, corner), whole, rtol=1e-4, atol=0)  # equal rows are counted by block


def test_without_learned_slopes_there_is_no_budget_for_them() -> None:
    call, corner = call_of(PROBLEMS[0])
    assert call.grad_output is not None
    found = gradient_budget(call.but(learned_slopes=False), call.grad_output, causal_alignment=corner)
    assert isinstance(found, GradientBudget)
    assert found.alibi_slopes is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("target", ["torch_eager:backend", "tiled:backend", "grouped:backend"])
def test_backends_stay_within_it_and_a_hundredth_of_the_gradient_does_not(target: str, dtype: str) -> None:
    kernel = resolve(f"attnspec.implementations.{target}")
    corner = kernel.capabilities.alibi_corner
    text = f"b=2/hq=4/hkv=2/q=33/k=70/d=64/dtype={dtype}/alibi=symmetric.{corner}.learned/grad=lse/seed=5"
    call = make_call(Problem.parse(text)).but(return_lse=True)
    true = gradients(call).alibi_slopes
    got = kernel.gradients(call)[1].alibi_slopes
    assert true is not None
    assert got is not None
    budget = of_slopes(call, "upper_left", kernel.capabilities.accuracy)
    assert bool(((got.double() - true).abs() <= budget).all())
    if dtype in ("float32", "float64"):
        assert bool((true.abs() > 100 * budget).all())
