"""The backward pass: gradients within their budgets, and what must add nothing to them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnspec.conformance.case import Case, Ran
from attnspec.conformance.checks.laws import keys_seen, need_same_bits, same_bits, with_other_hidden_keys
from attnspec.conformance.checks.lengths import with_absent
from attnspec.conformance.checks.memory import gapped, length_first
from attnspec.conformance.covering import fallbacks
from attnspec.conformance.draws import fitted
from attnspec.conformance.judgement import judge, judge_against_reference, judge_gradients, visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.golden.store import load
from attnspec.reference import grouped_heads
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call, Gradients, Result
from attnspec.spec.dtypes import format_of
from attnspec.spec.problem import Problem

FAR = 4.0  # budgets: a gradient that is further off owes it to a fault of logic, not to rounding


def gradients_match_golden(kernel: Kernel, case: Case) -> float:
    """The gradients lie within the error budget of the certified ones, and so does the output that they belong to."""
    kernel.need(case.problem)
    golden = load(case.name)
    assert golden.gradients is not None, "a golden case with gradients"
    result, got = kernel.gradients(with_lse(golden.call, case.problem))
    truth = Result(golden.output, golden.lse if case.problem.grad == "lse" else None)
    judge(kernel, case.problem, golden.call, result, truth, certified=True)
    try:
        return judge_gradients(kernel, case.problem, golden.call, got, golden.gradients, certified=True)
    except Violation as found:
        raise with_cause(kernel, case.problem, found) from None


def gradients_stay_within_budget(kernel: Kernel, case: Case) -> float:
    """The gradients lie within the error budget of the exact ones, and so does the output that they belong to."""
    return forward_and_back(kernel, case.problem)


def forward_and_back(kernel: Kernel, problem: Problem) -> float:
    """Run a problem forward and back, and return the worst error over budget of output, lse and gradients."""
    kernel.need(problem)
    call = with_lse(make_call(problem), problem)
    result, got = kernel.gradients(call)
    worst = judge_against_reference(kernel, problem, call, result)
    try:
        return max(worst, judge_against_closed_form(kernel, problem, call, got))
    except Violation as found:
        raise with_cause(kernel, problem, found) from None


def options_combine_in_the_backward(kernel: Kernel, case: Case) -> Ran:
    """A row of the covering array, fitted to the kernel, has output and gradients within the error budgets."""
    refusals = []
    for problem in fallbacks(fitted(case.problem, kernel)):
        try:
            return Ran(forward_and_back(kernel, problem), problem)
        except NotSupported as refusal:
            refusals.append(refusal)
        except Violation as found:
            found.case = case.on(problem)
            raise
    raise refusals[0]


def gradients_belong_to_their_call(kernel: Kernel, case: Case) -> float:
    """Run forward twice, with other tensors the second time, then back twice: where the gradients are right without
    that, each backward pass gives those of its own call, and leaves the output that it belongs to as it was."""
    problem = case.problem
    other = problem.but(seed=problem.seed + 1)
    kernel.need(problem)
    calls = [with_lse(make_call(each), each) for each in (problem, other)]
    worst = judge_against_closed_form(kernel, problem, calls[0], kernel.gradients(calls[0])[1])
    runs = [kernel.forward(call) for call in calls]
    outputs = [result.output.clone() for result, _ in runs]
    for each, call, (_, back) in zip((problem, other), calls, runs, strict=True):
        try:
            worst = max(worst, judge_against_closed_form(kernel, each, call, back()))
        except Violation as found:
            what = f"{found.what}, with another forward pass before the backward pass"
            raise Violation("backward.own-call", what, found.details, found.error_over_budget) from None
    for before, (result, _) in zip(outputs, runs, strict=True):
        same_bits("contract.no-alias", "the backward pass overwrites the output", before, result.output)
    return worst


def each_input_may_ask_alone(kernel: Kernel, case: Case) -> float:
    """Where only one of query, key and value asks for a gradient, it gets the right one, as it does with the others."""
    problem = case.problem
    kernel.need(problem)
    call = with_lse(make_call(problem), problem)
    truth = gradients(call, problem.corner)
    nothing = dict.fromkeys(Gradients._fields)
    worst = judge_gradients(kernel, problem, call, kernel.gradients(call)[1], truth)
    for name in ("query", "key", "value"):
        alone = Gradients(**nothing | {name: getattr(truth, name)})  # type: ignore[arg-type]
        try:
            worst = max(worst, judge_gradients(kernel, problem, call, kernel.gradients(call, (name,))[1], alone))
        except Violation as found:
            what = f"{found.what}, where {name} alone asks for one"
            raise Violation(found.rule, what, found.details, found.error_over_budget) from None
    return worst


def gradients_grow_with_what_flows_back(kernel: Kernel, case: Case) -> float:
    """A grad_output 256 times as large, as a scaled loss gives it, has gradients within the budgets."""
    problem = case.problem
    kernel.need(problem)
    call = with_lse(make_call(problem), problem)
    assert call.grad_output is not None, "a problem with gradients"
    call = call.but(grad_output=call.grad_output * LOSS_SCALE)
    return judge_against_closed_form(kernel, problem, call, kernel.gradients(call)[1])


LOSS_SCALE = 256.0  # far above the usual, and within the range of float16


def absent_keys_reach_no_gradient(kernel: Kernel, case: Case) -> float:
    """NaN in the memory of keys that do not exist leaves the gradients as right as they are without it."""
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    judge_against_closed_form(kernel, case.problem, call, kernel.gradients(call)[1])
    try:
        got = kernel.gradients(with_absent(call, torch.nan))[1]
        return judge_against_closed_form(kernel, case.problem, call, got)
    except Violation as found:
        if found.rule == "contract.declared-runs":
            raise
        what = f"NaN in keys and values that do not exist comes through: {found.what}"
        raise Violation("key-lengths.absent", what, found.details, found.error_over_budget) from None


def gradients_of_a_sum_stay_within_budget(kernel: Kernel, case: Case) -> float:
    """The gradients of the sum of all outputs lie within the error budget of the exact ones: every row asks for the
    same, so that partial sums over many rows grow."""
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    call = call.but(grad_output=torch.ones_like(call.query[..., :1]).expand(*call.query.shape[:3], call.value.shape[3]))
    return judge_against_closed_form(kernel, case.problem, call, kernel.gradients(call)[1])


def judge_against_closed_form(kernel: Kernel, problem: Problem, call: Call, got: Gradients) -> float:
    """`judge_gradients`, with the closed form in float64 as the truth. Raises NotSupported where the products of
    grad_output and values leave the range of the kernel's accuracy class (`accuracy.gradients-overflow`)."""
    if kernel.capabilities.accuracy == "eager" and largest_product(call) > format_of(call.query.dtype).largest / 2:
        raise NotSupported("grad_output times values beyond the range of class eager", declared=True)
    return judge_gradients(kernel, problem, call, got, gradients(call, problem.corner))


def largest_product(call: Call) -> float:
    """Return the largest sum over e of abs(grad_output_ie value_je)."""
    assert call.grad_output is not None, "a problem with gradients"
    value = grouped_heads.expand(call.value.double(), call.query.shape[1])  # (batch, q_heads, k_len, value_dim)
    return float((call.grad_output.double().abs() @ value.abs().transpose(-1, -2)).max())


def with_cause(kernel: Kernel, problem: Problem, found: Violation) -> Violation:
    """Return a violation under the rule of the first option of the problem without which the gradients are right.

    It stays as it is where there is none, and where the gradients are not far off. An option that is wrong in the
    forward pass too, and a mask of which only the gradient is wrong, is none that the backward pass lacks.
    """
    if found.error_over_budget is not None and found.error_over_budget < FAR:
        return found
    for rule, option, simpler in without_one_option(problem):
        if rule == "backward.matches-forward" and not (
            found.rule != "backward.bias" and forward_holds(kernel, problem)
        ):
            continue
        if holds(kernel, simpler):
            what = f"{found.what}; the same call without {option} has the right ones"
            return Violation(rule, what, found.details, found.error_over_budget)
    return found


def without_one_option(problem: Problem) -> Iterator[tuple[str, str, Problem]]:
    """Yield the options of a problem: the rule on their gradients, their name, and the problem without them."""
    p, mask = problem, problem.mask
    if p.grad == "lse":
        yield "backward.lse", "a gradient of the lse", p.but(grad="output")
    if p.kv_heads != p.q_heads:
        yield "backward.grouped", "grouped heads", p.but(kv_heads=p.q_heads)
    if p.kv_batch != p.batch:
        yield "backward.broadcast", "a key batch for all", p.but(kv_batch=p.batch)
    if mask is not None and mask.kind == "float" and mask.shape != "bhqk":
        yield "backward.broadcast", "a mask that is broadcast", p.but(mask=mask._replace(shape="bhqk"))
    if mask is not None and mask.content in ("empty_rows", "empty_head"):
        yield "backward.empty-row", "a row that sees nothing", p.but(mask=mask._replace(content="random"))
    if p.shift:
        yield "backward.recompute-range", "an lse far from 0", p.but(shift=0.0)
    if p.values == "huge":
        yield "accuracy.gradients-overflow", "large values", p.but(values="normal")
    if p.key_lengths is not None:
        yield "key-lengths.visible", "key_lengths", p.but(key_lengths=None)
    if p.softcap is not None:
        yield "softcap.gradient", "softcap", p.but(softcap=None)
    if p.window is not None:
        yield "backward.matches-forward", "window_size", p.but(window=None)
    if p.causal is not None:
        yield "backward.matches-forward", "is_causal", p.but(causal=None)
    if mask is not None:
        yield "backward.matches-forward", "attn_mask", p.but(mask=None)
    if p.scale is not None:
        yield "backward.matches-forward", "an explicit scale", p.but(scale=None)


def holds(kernel: Kernel, problem: Problem) -> bool:
    """Whether the kernel supports a problem and its gradients lie within their budgets."""
    call = with_lse(make_call(problem), problem)
    try:
        kernel.need(problem)
        judge_against_closed_form(kernel, problem, call, kernel.gradients(call)[1])
    except (NotSupported, Violation):
        return False
    return True


def forward_holds(kernel: Kernel, problem: Problem) -> bool:
    """Whether the output of a problem lies within its budget."""
    call = make_call(problem)
    try:
        judge_against_reference(kernel, problem, call, kernel(call))
    except (NotSupported, Violation):
        return False
    return True


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
    elements (as a sum gives it) are read right, and so are query, key and value in such storage; all of them stay as
    they were."""
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    assert call.grad_output is not None, "a problem with gradients"
    flows = {
        "contiguous": call.grad_output,
        "gapped": gapped(call.grad_output),
        "length first": length_first(call.grad_output),
        "expanded": call.grad_output[:1, :1, :1, :1].expand_as(call.grad_output),
    }
    worst = 0.0
    for how, flow in flows.items():
        plain = call.but(grad_output=flow.clone(memory_format=torch.contiguous_format))
        try:
            got = gradients_of_unchanged(kernel, call.but(grad_output=flow))
            worst = max(worst, judge_against_closed_form(kernel, case.problem, plain, got))
        except Violation as found:
            if how == "contiguous" or found.rule in ("contract.declared-runs", "contract.inputs-unchanged"):
                raise
            what = f"{found.what}, with a grad_output {how}"
            raise Violation("contract.layouts", what, found.details, found.error_over_budget) from None
    for layout in (gapped, length_first):
        placed = call.but(**{name: layout(getattr(call, name)) for name in ("query", "key", "value")})
        try:
            worst = max(worst, judge_against_closed_form(kernel, case.problem, call, kernel.gradients(placed)[1]))
        except Violation as found:
            what = f"{found.what}, with inputs {layout.__name__}"
            raise Violation("contract.layouts", what, found.details, found.error_over_budget) from None
    return worst


def gradients_of_unchanged(kernel: Kernel, call: Call) -> Gradients:
    """Return the gradients of a call. Raises Violation (`contract.inputs-unchanged`) where the backward pass writes
    into what it was given."""
    given = call.differentiable() | {
        name: flow for name in ("grad_output", "grad_lse") if (flow := getattr(call, name)) is not None
    }
    before = {name: tensor.clone() for name, tensor in given.items()}
    got = kernel.gradients(call)[1]
    for name, tensor in given.items():
        if not torch.equal(tensor, before[name]):
            raise Violation("contract.inputs-unchanged", f"the backward pass changed {name}")
    return got


def gradients_repeat_bit_for_bit(kernel: Kernel, case: Case) -> None:
    """The same call gives the same gradients, bit for bit, also after another; those given before stay as they were."""
    need_same_bits(kernel)
    kernel.need(case.problem)
    call = with_lse(make_call(case.problem), case.problem)
    first = kernel.gradients(call)[1]
    kept = Gradients(*(None if x is None else x.clone() for x in first))  # type: ignore[arg-type]
    kernel.gradients(with_lse(make_call(case.problem.but(seed=case.problem.seed + 1)), case.problem))
    for name in call.differentiable():
        what = f"the gradient of {name} that was given before changes when the kernel is called again"
        same_bits("contract.no-alias", what, getattr(kept, name), getattr(first, name))
    again = kernel.gradients(call)[1]
    for name in call.differentiable():
        what = f"the same call gives other bits of the gradient of {name} the second time"
        same_bits("contract.deterministic", what, getattr(kept, name), getattr(again, name))
