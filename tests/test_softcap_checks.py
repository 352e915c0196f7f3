"""Checks and budgets of softcap: each check finds the fault that it is there for, and honest kernels stay below 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from findings import findings
from mutants import mutant_named
from mutants.house import HONEST, kernel_of

from attnspec.conformance.budget import FAST_TANH, arithmetic_of, error_budget
from attnspec.conformance.catalogue import case_named
from attnspec.conformance.diagnosis.diagnose import diagnose
from attnspec.conformance.gradient_budget import GradientBudget, gradient_budget
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import Violation
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.reference.attention import answer
from attnspec.spec.call import Call
from attnspec.spec.dtypes import BFLOAT16, FLOAT16, FLOAT32
from attnspec.spec.problem import Problem

pytestmark = pytest.mark.usefixtures("one_thread")
FOUND = [  # check, mutant, the rule that must be named
    ("visible_set_is_exact", "softcap-after-the-mask", "softcap.bias"),
    ("two_keys_give_their_closed_form", "softcap-ignored", "softcap.scores"),
    ("two_keys_give_their_closed_form", "softcap-in-base-2", "softcap.scores"),
    ("two_keys_give_their_closed_form", "softcap-by-clamping", "softcap.scores"),
    ("two_keys_give_their_closed_form", "softcap-on-unscaled-scores", "softcap.scores"),
    ("two_keys_give_their_closed_form", "softcap-missing-from-lse", "softcap.scores"),
    ("a_cap_far_above_the_scores_is_none", "softcap-of-0-caps", "softcap.none"),
    ("a_cap_far_above_the_scores_is_none", "softcap-not-multiplied-back", "softcap.none"),
    ("impossible_caps_are_refused", "softcap-below-0-is-none", "softcap.range"),
    ("impossible_caps_are_refused", "softcap-nan-is-none", "softcap.range"),
    ("impossible_caps_are_refused", "softcap-infinite-is-none", "softcap.range"),
    ("output_stays_within_budget", "softcap-after-the-bias", "accuracy.output-within-budget"),
    ("output_stays_within_budget", "softcap-tanh-in-16-bits", "accuracy.output-within-budget"),
    ("output_stays_within_budget", "softcap-tanh-fast-in-float32", "accuracy.output-within-budget"),
    ("lse_stays_within_budget", "softcap-missing-from-lse", "accuracy.lse-within-budget"),
    ("gradients_stay_within_budget", "grad-softcap-missing", "softcap.gradient"),
    ("gradients_stay_within_budget", "grad-softcap-tanh-for-its-slope", "softcap.gradient"),
    ("gradients_stay_within_budget", "grad-softcap-on-the-bias-too", "softcap.gradient"),
    ("gradients_stay_within_budget", "grad-softcap-slope-where-square-only", "softcap.gradient"),
    ("gradients_match_golden", "grad-softcap-missing-from-the-key", "softcap.gradient"),
]
HONEST_TARGETS = [
    f"{HONEST / 'softcap_plain.py'}:attention",
    f"{HONEST / 'softcap_plain.py'}:attention_by_exponentials",
    f"{HONEST / 'softcap_plain.py'}:attention_by_sigmoid",
    f"{HONEST / 'softcap_plain.py'}:attention_fast",
    f"{HONEST / 'softcap_recompute.py'}:attention",
    "torch_eager",
    "tiled",
    "grouped",
]


def violations(kernel: Kernel, check: str | None = None) -> Iterator[Violation]:
    """Run the quick cases that have a softcap, of one check or all, and yield what they find."""
    found = findings(kernel, lambda case: case.problem.softcap is not None and check in (None, case.check))
    return (violation for _, violation in found)


@pytest.mark.parametrize(("check", "mutant", "rule"), FOUND)
def test_the_check_finds_the_fault_and_names_its_rule(check: str, mutant: str, rule: str) -> None:
    assert rule in (found.rule for found in violations(kernel_of(mutant_named(mutant)), check))


@pytest.mark.parametrize("target", HONEST_TARGETS)
def test_honest_kernels_pass_every_case(target: str) -> None:
    assert [str(found) for found in violations(resolve(target))] == []


@pytest.mark.parametrize("name", ["plain", "recompute"])
def test_honest_kernels_refuse_impossible_caps(name: str) -> None:
    x = torch.ones(1, 1, 4, 4)
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="softcap"):
            resolve(f"{HONEST / f'softcap_{name}.py'}:attention").run(x, x, x, softcap=wrong)


def test_a_fast_tanh_is_for_16_bits_in_class_fused_alone() -> None:
    assert [arithmetic_of(fmt).tanh for fmt in (BFLOAT16, FLOAT16, FLOAT32)] == [FAST_TANH, FAST_TANH, 0.0]
    assert arithmetic_of(BFLOAT16, "eager").tanh == 0.0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_small_cap_makes_the_budget_no_larger_where_scores_are_large(dtype: str) -> None:
    """The slope shrinks what the errors of large scores do: capped at 1, scores of 32 cost less than uncapped ones."""
    call = make_call(Problem(q_len=16, k_len=40, head_dim=64, scores=32.0, dtype=dtype, seed=1))
    capped = error_budget(call.but(softcap=1.0))
    assert float(capped.lse.median()) < float(error_budget(call).lse.median())


def test_a_cap_far_above_costs_what_a_tanh_by_exponentials_loses() -> None:
    """16 w c on every score, and nothing else that shows."""
    call = make_call(Problem(q_len=16, k_len=40, head_dim=64, seed=1))
    wide, none = error_budget(call.but(softcap=2.0**20)), error_budget(call)
    assert torch.all((wide.lse - none.lse) >= 16 * 2.0**-24 * 2.0**20 * 0.99)


def test_the_gradient_budget_vanishes_with_the_slope() -> None:
    """At s / c above 40 the slope is 0: what is left is the rounding of 1 - t^2, a few unit roundoffs of dS."""
    problem = Problem(q_len=8, k_len=8, head_dim=16, softcap=0.01, scores=32.0, grad="output", seed=1)
    call = make_call(problem)
    assert call.grad_output is not None
    budget = gradient_budget(call, call.grad_output).query
    largest = 2 * (call.grad_output.double() @ call.value.double().mT).abs().max()  # dP - delta
    terms = largest * (call.key.double().abs().sum(-2).max() / 4)
    assert 0 < float(budget.median()) < float(64 * 2.0**-24 * terms)


def test_an_error_in_the_tanh_of_the_allowed_size_is_within_the_budget_and_a_larger_one_is_not() -> None:
    problem = Problem(q_len=32, k_len=4, head_dim=64, softcap=50.0, scores=16.0, dtype="float16", seed=2)
    call = make_call(problem)
    scores = call.query.double() @ call.key.double().mT / 8
    truth = answer(call)
    budget = error_budget(call)
    assert truth.lse is not None
    for size, inside in ((1.0, True), (16.0, False)):
        y = 50.0 * torch.tanh(scores / 50.0) * (1 + size * FAST_TANH * torch.sign(scores))
        over = ((torch.logsumexp(y, -1) - truth.lse).abs() / budget.lse).max()
        assert (float(over) <= 1) is inside


@pytest.mark.parametrize(
    ("mutant", "mistake"),
    [
        ("softcap-ignored", "softcap-dropped"),
        ("softcap-after-the-bias", "softcap-after-bias"),
        ("softcap-on-unscaled-scores", "softcap-before-scale"),
        ("softcap-in-base-2", "softcap-in-base-2"),
        ("softcap-by-clamping", "softcap-by-clamping"),
        ("softcap-missing-from-lse", "softcap-missing-from-lse"),
    ],
)
def test_the_diagnosis_names_the_mistake(mutant: str, mistake: str) -> None:
    biased = "/mask=float.qk.random" if "bias" in mutant else ""
    case = case_named(f"lse_stays_within_budget/hq=2/q=40/k=60/d=32{biased}/softcap=1.5/scores=4/seed=3")
    found = diagnose(kernel_of(mutant_named(mutant)), case)
    assert found is not None
    assert found.names[0] == mistake
    assert found.rule(case.problem).startswith("softcap.")


def backward_budget(
    key: list[float],
    value: list[list[float]],
    grad_output: list[float],
    query: float,
    dtype: torch.dtype,
    **options: Any,
) -> GradientBudget:
    """The budget of the gradients of one row over a few keys of one feature."""
    tensors = (torch.tensor(x, dtype=dtype)[None, None] for x in ([[query]], [[k] for k in key], value))
    accuracy = options.pop("accuracy", "fused")
    flow = torch.tensor(grad_output, dtype=dtype)[None, None, None]
    return gradient_budget(Call(*tensors, **options), flow, accuracy=accuracy)


def test_a_gradient_that_cancels_beyond_the_cap_has_the_error_of_delta_times_that_of_the_slope() -> None:
    """dS is 0 and so is the slope; a kernel's dS is off by p (delta's error), and its slope by 2^-10."""
    options = {"softcap": 0.5, "scale": 1.0}
    budget = backward_budget([20.0, 24.0], [[3.0, 5.0]] * 2, [7.0, -4.0], 1.0, torch.bfloat16, **options)
    of_delta = 2.0**-8 * (21.0**2 + 20.0**2) ** 0.5  # the store of both columns of the output
    assert budget.query.item() > 2.0**-10 * of_delta * 22.0


def test_a_product_with_the_slope_that_is_below_the_least_number_may_be_lost() -> None:
    """dS is 2.2e-7 and its product with the slope 2.3e-8, below half of float16's least number: it is stored as 0."""
    slope, small = 1 - math.tanh(1.8) ** 2, math.exp(20 * math.tanh(1.8) - 38) * 42
    assert slope * small < 2.0**-25 < small
    options = {"softcap": 20.0, "scale": 1.0, "attn_mask": torch.tensor([-38.0, 0.0]).half()}
    budget = backward_budget([0.5625, 0.0], [[42.0], [0.0]], [1.0], 64.0, torch.float16, **options)
    assert budget.key[0, 0, 0, 0].item() > 64 * slope * small


@pytest.mark.parametrize(("accuracy", "stores"), [("fused", 1), ("eager", 5)])
def test_class_eager_stores_a_small_gradient_before_it_is_scaled(accuracy: str, stores: int) -> None:
    """A sum over a key of 0: what is left of the budget is half of float16's least number a store, times the scale."""
    budget = backward_budget([0.0], [[1.0]], [0.0], 1.0, torch.float16, scale=4.0, accuracy=accuracy)
    assert budget.query.item() == stores * 2.0**-25
