"""The backward pass: gradients within their budgets, and what must add nothing to them."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.checks.laws import keys_seen, need_same_bits, same_bits, with_other_hidden_keys
from attnspec.conformance.checks.memory import gapped, length_first
from attnspec.conformance.judgement import judge_gradients, visible_set
from attnspec.conformance.kernel import Kernel, differentiable
from attnspec.conformance.outcome import Violation
from attnspec.golden.inputs import make_call
from attnspec.golden.store import load
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call, Gradients
from attnspec.spec.problem import Problem


def gradients_match_golden(kernel: Kernel, case: Case) -> float:
    """The gradients lie within the error budget of the certified ones."""
    kernel.need(case.problem)
    golden = load(case.name)
    assert golden.gradients is not None, "a golden case with gradients"
    got = kernel.gradients(with_lse(golden.call, case.problem))[1]
    return judge_gradients(kernel, case.problem, golden.call, got, golden.gradients, certified=True)


def gradients_stay_within_budget(kernel: Kernel, case: Case) -> float:
    """The gradients lie within the error budget of the exact ones."""
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    return judge_against_closed_form(kernel, case.problem, call, kernel.gradients(call)[1])


def judge_against_closed_form(kernel: Kernel, problem: Problem, call: Call, got: Gradients) -> float:
    """`judge_gradients`, with the closed form in float64 as the truth."""
    return judge_gradients(kernel, problem, call, got, gradients(call, problem.causal or "upper_left"))


def with_lse(call: Call, problem: Problem) -> Call:
    """Return the call, asking for the lse where gradients flow back through it."""
    return call.but(return_lse=problem.grad == "lse")


def hidden_keys_get_no_gradient(kernel: Kernel, case: Case) -> None:
    """Keys and values that no row sees have gradient exactly 0, and other finite ones in their place change no bit of
    any gradient."""
    need_same_bits(kernel)
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    visible = visible_set(case.problem, call)
    before = kernel.gradients(call)[1]
    hidden = ~keys_seen(call, visible)
    for name in ("key", "value"):
        there = getattr(before, name).masked_fill(~hidden, 0.0)
        same_bits("backward.hidden", f"the gradient of a hidden {name} is not 0", torch.zeros_like(there), there)
    after = kernel.gradients(with_other_hidden_keys(call, visible))[1]
    for name in ("query", "key", "value"):
        what = f"other keys and values in hidden slots change the gradient of {name}"
        same_bits("backward.hidden", what, getattr(before, name), getattr(after, name))


def layout_of_what_flows_back_does_not_matter(kernel: Kernel, case: Case) -> float:
    """A grad_output in gapped storage, in that of (batch, length, heads, dim), and one number expanded over all
    elements (as a sum gives it) are read right; it and the inputs stay as they were."""
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    assert call.grad_output is not None, "a problem with gradients"
    worst = judge_against_closed_form(kernel, case.problem, call, kernel.gradients(call)[1])
    one = call.grad_output[:1, :1, :1, :1].expand_as(call.grad_output)
    for how, flow in (
        ("gapped", gapped(call.grad_output)),
        ("length first", length_first(call.grad_output)),
        ("expanded", one),
    ):
        placed = call.but(grad_output=flow)
        before = {name: tensor.clone() for name, tensor in differentiable(placed).items()} | {
            "grad_output": flow.clone()
        }
        try:
            got = kernel.gradients(placed)[1]
            plain = placed.but(grad_output=flow.contiguous())
            worst = max(worst, judge_against_closed_form(kernel, case.problem, plain, got))
        except Violation as found:
            if found.rule == "contract.declared-runs":
                raise
            what = f"{found.what}, with a grad_output {how}"
            raise Violation("contract.layouts", what, found.details, found.error_over_budget) from None
        for name, tensor in before.items():
            if not torch.equal(tensor, getattr(placed, name)):
                raise Violation("contract.inputs-unchanged", f"the backward pass changed {name}")
    return worst


def gradients_repeat_bit_for_bit(kernel: Kernel, case: Case) -> None:
    """The same call gives the same gradients, bit for bit, also after another."""
    need_same_bits(kernel)
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    first = kernel.gradients(call)[1]
    kernel.gradients(with_lse(make_call(case.problem.but(seed=case.problem.seed + 1)), case.problem))
    again = kernel.gradients(call)[1]
    for name in ("query", "key", "value"):
        what = f"the same call gives other bits of the gradient of {name} the second time"
        same_bits("contract.deterministic", what, getattr(first, name), getattr(again, name))
