"""From a result and the truth to a finding: the comparison within the error budget, and the rule that is broken."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from attnspec.conformance.budget import Budget, error_budget
from attnspec.conformance.comparison import Comparison, compare
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.reference import grouped_heads, lengths, masks
from attnspec.reference.attention import answer
from attnspec.spec.call import Call, Gradients, Result
from attnspec.spec.dtypes import FLOAT32, FLOAT64, format_named, format_of
from attnspec.spec.problem import Problem

OUTPUT_AXES = ("batch", "head", "row", "column")
LSE_AXES = ("batch", "head", "row")
UPPER_LEFT = "upper_left"


def judge(
    kernel: Kernel, problem: Problem, call: Call, result: Result, truth: Result, *, certified: bool = False
) -> float:
    """Return the worst error over budget of a result's output, and of its lse where there is one.

    truth: output and lse, float64. certified: the truth is correctly rounded; else it is the float64 reference, whose
    own error counts as one more budget for float64 inputs. Raises Violation where an element is above its budget, and
    NotSupported where the scores leave the range of the kernel's accuracy class (`softmax.any-finite-score`).
    """
    budget = budget_of(kernel, problem, call)
    if not certified:
        budget = Budget(twice_if_double(problem, budget.output), twice_if_double(problem, budget.lse))
    comparison = compare(result.output, truth.output, budget.output, format_named(problem.dtype))
    if not comparison.holds:
        raise _violation("output", comparison, OUTPUT_AXES, "accuracy.output-within-budget", problem, call)
    worst = comparison.error_over_budget
    if result.lse is not None and truth.lse is not None:
        wide = FLOAT64 if problem.dtype == FLOAT64.name else FLOAT32
        expected = truth.lse
        if kernel.capabilities.lse_base == "2":  # the lse over log 2 leaves the range of its dtype earlier
            lost = expected.isfinite() & (expected.abs() > wide.largest * math.log(2))
            expected = torch.where(lost, expected.sign() * torch.inf, expected)
        comparison = compare(result.lse, expected, budget.lse, wide)
        if not comparison.holds:
            raise _violation("lse", comparison, LSE_AXES, "accuracy.lse-within-budget", problem, call)
        worst = max(worst, comparison.error_over_budget)
    return worst


def judge_against_reference(kernel: Kernel, problem: Problem, call: Call, result: Result) -> float:
    """`judge`, with the float64 reference as the truth."""
    return judge(kernel, problem, call, result, answer(call, problem.corner))


def _violation(
    name: str, found: Comparison, axes: tuple[str, ...], rule: str, problem: Problem, call: Call
) -> Violation:
    empty = empty_rows(problem, call)  # (batch, q_heads, q_len)
    only_empty = not bool((found.wrong & ~(empty if name == "lse" else empty[..., None])).any())
    if problem.k_len == 0:
        rule = "attention.zero-length"
    elif only_empty and problem.sinks:
        rule = "sinks.empty-row" if name == "output" else "sinks.lse"
    elif only_empty:
        rule = "mask.fully-masked-row" if name == "output" else "softmax.lse-empty-row"
    elif found.nan_appeared:
        rule = "contract.output-written"
    return Violation(rule, f"{name} {found.what}", found.details(name, axes), found.error_over_budget)


def judge_gradients(
    kernel: Kernel, problem: Problem, call: Call, got: Gradients, truth: Gradients, *, certified: bool = False
) -> float:
    """Return the worst error over budget of the gradients of a call.

    truth, certified: as in `judge`. Raises Violation where an element is above its budget, and NotSupported where the
    scores leave the range of the kernel's accuracy class.
    """
    accuracy = kernel.capabilities.accuracy
    if not scores_in_range(call, accuracy):
        raise NotSupported(f"scores beyond the range of class {accuracy}", declared=True)
    corner = problem.corner
    assert call.grad_output is not None, "a problem with gradients"
    budgets = gradient_budget(call, call.grad_output, call.grad_lse, causal_alignment=corner, accuracy=accuracy)
    worst = 0.0
    for name in call.differentiable():
        given, true, budget = (getattr(x, name) for x in (got, truth, budgets))
        if true is None:
            continue
        allowed = budget if certified else twice_if_double(problem, budget)
        comparison = compare(given, true, allowed, format_of(given.dtype))
        if not comparison.holds:
            raise _gradient_violation(name, comparison, problem, call)
        worst = max(worst, comparison.error_over_budget)
    return worst


def twice_if_double(problem: Problem, budget: torch.Tensor) -> torch.Tensor:
    """Return the budget, doubled for float64, where the reference errs as much as the kernel."""
    return 2 * budget if problem.dtype == FLOAT64.name else budget


GRADIENT_RULES = {
    "query": "backward.query",
    "key": "backward.key",
    "value": "backward.value",
    "attn_mask": "backward.bias",
    "sinks": "sinks.gradient",
    "alibi_slopes": "alibi.gradient",
}


def _gradient_violation(name: str, found: Comparison, problem: Problem, call: Call) -> Violation:
    rule = GRADIENT_RULES[name]
    if name == "query" and not bool((found.wrong & ~empty_rows(problem, call)[..., None]).any()):
        rule = "backward.empty-row"
    axes: tuple[str, ...] = ("batch", "head", "row" if name == "query" else "key", "column")
    if name == "attn_mask":
        axes = ("batch", "head", "row", "key")[4 - found.truth.ndim :]
    elif name in ("sinks", "alibi_slopes"):
        axes = ("batch", "head")[2 - found.truth.ndim :]
    details = found.details(f"grad_{name}", axes)
    return Violation(rule, f"the gradient of {name} {found.what}", details, found.error_over_budget)


def visible_set(problem: Problem, call: Call) -> torch.Tensor:
    """Return the visible set of a problem's call, bool (batch, q_heads, q_len, k_len), by the spec's own mask code."""
    batch, heads, q_len, _ = call.query.shape
    shape = (batch, heads, q_len, call.key.shape[2])
    return masks.visible(shape, call.attn_mask, call.is_causal, problem.corner, call.key_lengths, call.window_size)


def empty_rows(problem: Problem, call: Call) -> torch.Tensor:
    """Return which rows see no key, bool (batch, q_heads, q_len)."""
    return ~visible_set(problem, call).any(-1)


def scores_in_range(call: Call, accuracy: str) -> bool:
    """Whether sum_d |q k|, scaled or not, is finite in the format in which a kernel of the class holds scores:
    float32, float64 for float64 inputs, the storage dtype in class eager. What stands in the place of keys that do not
    exist does not count. Rule: `softmax.any-finite-score`."""
    storage = format_of(call.query.dtype)
    fmt = storage if accuracy == "eager" or storage is FLOAT64 else FLOAT32
    if call.query.numel() == 0 or call.key.numel() == 0:
        return True
    key = call.key.double()
    if call.key_lengths is not None:
        key = lengths.clear_absent(key, call.query.shape[0], call.key_lengths)
    key = grouped_heads.expand(key, call.query.shape[1])  # (batch, q_heads, k_len, head_dim)
    largest = float((call.query.double().abs() @ key.abs().transpose(-1, -2)).max())
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else abs(call.scale)
    return largest * max(scale, 1.0) <= fmt.largest


def budget_of(kernel: Kernel, problem: Problem, call: Call) -> Budget:
    """Return the budget of a call. Raises NotSupported beyond the range of the kernel's accuracy class."""
    accuracy = kernel.capabilities.accuracy
    if not scores_in_range(call, accuracy):
        raise NotSupported(f"scores beyond the range of class {accuracy}", declared=True)
    return error_budget(call, causal_alignment=problem.corner, accuracy=accuracy)


def call_with_lse(kernel: Kernel, problem: Problem) -> Call:
    """Return the call of a problem, with the lse where the kernel has it. Raises NotSupported."""
    kernel.need(problem)
    return kernel.asking_for_lse(make_call(problem), problem)


def need_refusals(kernel: Kernel, rule: str, wrong: Iterable[tuple[str, Call]]) -> None:
    """Raise Violation of the rule where a call that must be refused is answered. wrong: what each one has, in words."""
    for what, call in wrong:
        if not kernel.refuses(call):
            raise Violation(rule, f"a call with {what} was answered, not refused")


def lse_of(result: Result) -> torch.Tensor:
    """The result's lse, which was asked for."""
    assert result.lse is not None, "asked for with return_lse"
    return result.lse
