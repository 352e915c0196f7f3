"""Relations: two ways to ask the same question, within the sum of the two error budgets."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.comparison import compare
from attnspec.conformance.judgement import LSE_AXES, OUTPUT_AXES, budget_of, lse_of, visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import Source, make_call
from attnspec.reference.merge import Part, merge
from attnspec.spec.call import Call, Result
from attnspec.spec.dtypes import FLOAT32, FLOAT64, format_named
from attnspec.spec.problem import Mask, Problem


def order_of_keys_does_not_matter(kernel: Kernel, case: Case) -> float:
    """Keys, values and the mask's columns in another order give the same output."""
    problem = case.problem
    kernel.need(problem)
    call = explicit(kernel, problem)
    order = shuffled(problem, problem.k_len)
    mask = call.attn_mask
    if mask is not None and mask.shape[-1] == problem.k_len:
        mask = mask[..., order]
    other = call.but(key=call.key[:, :, order], value=call.value[:, :, order], attn_mask=mask)
    return same(kernel, problem, "attention.output", "the keys in another order", call, other)


def order_of_heads_does_not_matter(kernel: Kernel, case: Case) -> float:
    """Heads in another order, groups kept together, give the same outputs in that order."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    order = shuffled(problem, problem.kv_heads)
    group = problem.q_heads // problem.kv_heads
    spread = (order[:, None] * group + torch.arange(group)).flatten()
    mask = call.attn_mask
    if mask is not None and mask.ndim >= 3 and mask.shape[-3] == problem.q_heads:
        mask = mask[..., spread, :, :]
    other = call.but(query=call.query[:, spread], key=call.key[:, order], value=call.value[:, order], attn_mask=mask)
    return same(kernel, problem, "grouped.head-map", "the heads in another order", call, other, lambda x: x[:, spread])


def batch_elements_are_apart(kernel: Kernel, case: Case) -> float:
    """The last element of a batch, asked for alone, gives the same output."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    mask = call.attn_mask
    if mask is not None and mask.ndim == 4:
        mask = mask[-1:]
    other = call.but(query=call.query[-1:], key=call.key[-1:], value=call.value[-1:], attn_mask=mask)
    return same(kernel, problem, "notation.layout", "the last batch element alone", call, other, lambda x: x[-1:])


def rows_are_apart(kernel: Kernel, case: Case) -> float:
    """The last query row, asked for alone as a decode step, gives the same output."""
    problem = case.problem
    kernel.need(problem)
    call = explicit(kernel, problem)
    mask = call.attn_mask
    if mask is not None and mask.ndim >= 2 and mask.shape[-2] == problem.q_len:
        mask = mask[..., -1:, :]
    other = call.but(query=call.query[:, :, -1:], attn_mask=mask)
    return same(kernel, problem, "attention.output", "the last row alone", call, other, lambda x: x[:, :, -1:])


def groups_equal_expanded_heads(kernel: Kernel, case: Case) -> float:
    """Grouped heads give the output of as many key heads as query heads, each repeated."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    group = problem.q_heads // problem.kv_heads
    key, value = (x.repeat_interleave(group, dim=1) for x in (call.key, call.value))
    other = call.but(key=key, value=value, enable_gqa=False)
    return same(kernel, problem, "grouped.head-map", "with the key heads repeated", call, other)


def bool_mask_equals_its_additive_form(kernel: Kernel, case: Case) -> float:
    """A bool mask gives the output of the additive mask that is 0 and -inf in its place."""
    problem = case.problem
    mask = problem.mask or Mask("bool", "qk", "random")
    for kind in ("bool", "float"):
        kernel.need(problem.but(mask=mask._replace(kind=kind)))
    call = make_call(problem.but(mask=mask._replace(kind="bool")))
    keep = visible_set(problem, call.but(is_causal=False)) if call.attn_mask is None else call.attn_mask
    bias = torch.zeros(keep.shape, dtype=call.query.dtype).masked_fill(~keep, -torch.inf)
    return same(kernel, problem, "mask.bool", "with -inf for False", call, call.but(attn_mask=bias))


def hidden_tail_equals_shorter_keys(kernel: Kernel, case: Case) -> float:
    """Keys that are masked for every row give the output of the keys without them."""
    problem = case.problem
    kernel.need(problem.but(causal=None, mask=Mask("bool", "11qk", "leading")))
    call = make_call(problem.but(causal=None, mask=None))
    kept = max(1, problem.k_len * 2 // 3)
    keep = (torch.arange(problem.k_len) < kept).expand(1, 1, problem.q_len, problem.k_len)
    masked = call.but(attn_mask=keep)
    shorter = call.but(key=call.key[:, :, :kept], value=call.value[:, :, :kept])
    return same(kernel, problem, "mask.key-padding", "without the masked keys", masked, shorter)


def twice_the_keys_give_the_same(kernel: Kernel, case: Case) -> float:
    """Every key and value twice gives the same output: every weight is halved and counted twice."""
    problem = case.problem
    kernel.need(problem)
    call = explicit(kernel, problem)
    mask = call.attn_mask
    if mask is not None and mask.shape[-1] == problem.k_len:
        mask = torch.cat([mask, mask], -1)
    key, value = (torch.cat([x, x], 2) for x in (call.key, call.value))
    return same(
        kernel, problem, "softmax.weights", "with every key twice", call, call.but(key=key, value=value, attn_mask=mask)
    )


def output_is_linear_in_the_values(kernel: Kernel, case: Case) -> float:
    """With the values negated and halved, the output is negated and halved."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    other = call.but(value=call.value * -0.5)
    return same(kernel, problem, "attention.output", "with the values times -1/2", call, other, lambda x: x * -0.5)


def output_lies_between_the_visible_values(kernel: Kernel, case: Case) -> None:
    """Every output is a weighted mean: between the least and the largest value that its row sees, within the
    budget."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    output = kernel(call).output.double()  # (batch, q_heads, q_len, value_dim)
    group = problem.q_heads // problem.kv_heads
    value = call.value.double().repeat_interleave(group, dim=1)[:, :, None]  # (batch, q_heads, 1, k_len, value_dim)
    seen = visible_set(problem, call)[..., None]  # (batch, q_heads, q_len, k_len, 1)
    low = torch.where(seen, value, torch.inf).amin(-2)
    high = torch.where(seen, value, -torch.inf).amax(-2)
    budget = budget_of(kernel, problem, call).output
    outside = (output < low - budget) | (output > high + budget)
    outside &= seen.any(-2)  # an empty row has no bounds
    if bool(outside.any()):
        at = tuple(int(i) for i in outside.nonzero()[0])
        what = f"output{list(at)} is {float(output[at]):.9g}, outside the values that its row sees"
        raise Violation("softmax.weights", what)


def halves_merge_by_their_lse(kernel: Kernel, case: Case) -> float:
    """The results of two parts of the keys, weighted by exp(lse), give the result of all keys."""
    problem = case.problem
    kernel.need(problem, return_lse=True)
    whole = explicit(kernel, problem).but(return_lse=True)
    cut = problem.k_len // 3
    pieces = [part_of_keys(whole, slice(0, cut)), part_of_keys(whole, slice(cut, None))]
    if cut == 0:
        raise NotSupported("fewer than 3 keys cannot be split", declared=True)
    results = [kernel(call) for call in (*pieces, whole)]
    budgets = [budget_of(kernel, problem, call) for call in (*pieces, whole)]
    lses = [lse_of(result).double()[..., None] for result in results]
    both = torch.logaddexp(lses[0], lses[1])  # (batch, q_heads, q_len, 1)
    shares = [torch.exp(lse - both).nan_to_num(0.0) for lse in lses[:2]]  # an empty row has no shares
    merged = sum(share * result.output.double() for share, result in zip(shares, results[:2], strict=True))
    assert isinstance(merged, torch.Tensor)
    allowed = budgets[2].output.clone()
    for share, result, budget in zip(shares, results[:2], budgets[:2], strict=True):
        distance = (result.output.double() - merged).abs()
        allowed += share * (budget.output + 2 * (budgets[0].lse + budgets[1].lse)[..., None] * distance)
    found = compare(results[2].output, merged, allowed, format_named(problem.dtype))
    if not found.holds:
        what = f"merged by their lse, keys 0-{cut - 1} and the rest do not give the output of all keys"
        raise Violation("softmax.lse", what, found.details("output", OUTPUT_AXES), found.error_over_budget)
    return found.error_over_budget


STRETCHES = (1.0, 4.0, 32.0)  # of scores that grow or fall along the keys: the ends lie 60, 240 and 1920 apart


def parts_merge_in_any_order(kernel: Kernel, case: Case) -> float:
    """The results of three parts of the keys, merged by their lse, give output and lse of all keys, whatever order the
    parts stand in, how far apart their lse are, and whether a row sees any key of them."""
    problem = case.problem
    kernel.need(problem, return_lse=True)
    rule = "empty" if problem.mask else "associative" if problem.keys == "normal" else "gap"
    worst = 0.0
    for stretch in STRETCHES if problem.keys != "normal" else STRETCHES[:1]:
        call = make_call(problem).but(return_lse=True)
        query = call.query.clone()
        query[..., 0] *= stretch  # the feature through which scores grow and fall
        whole = call.but(query=query)
        parts = torch.arange(problem.k_len).tensor_split((problem.k_len // 5, problem.k_len // 2))
        expected, margin = merged(kernel, problem, [part_of_keys(whole, keys) for keys in parts])
        assert margin.lse is not None, "merged has one"
        for order in permutations(range(len(parts))):
            ordered = part_of_keys(whole, torch.cat([parts[part] for part in order]))
            budget = budget_of(kernel, problem, ordered)
            allowed = Result(budget.output + margin.output, budget.lse + margin.lse)
            how = f"of all keys against the parts merged, in the order {' '.join(map(str, order))}"
            worst = max(worst, difference(problem, f"flash.merge-{rule}", how, kernel(ordered), expected, allowed))
    return worst


def merged(kernel: Kernel, problem: Problem, calls: list[Call]) -> tuple[Result, Result]:
    """Return the kernel's results of disjoint parts of the keys, merged in float64, and how far off they may be.

    A part whose lse is off by d has a share that is off by up to 2d of itself, against the others.
    """
    results = [kernel(call) for call in calls]
    budgets = [budget_of(kernel, problem, call) for call in calls]
    truth = merge([Part(result.output, lse_of(result)) for result in results])
    off = torch.stack([budget.lse for budget in budgets]).amax(0)  # (batch, q_heads, q_len)
    output = torch.zeros_like(truth.output)
    for result, budget in zip(results, budgets, strict=True):
        share = torch.exp(lse_of(result).double() - truth.lse).nan_to_num(0.0)[..., None]  # an empty row has none
        distance = (result.output.double() - truth.output).abs().nan_to_num(0.0)  # NaN where there is no share
        output += share * (budget.output + 2 * off[..., None] * distance)
    return Result(*truth), Result(output, off)


def part_of_keys(call: Call, keys: slice | torch.Tensor) -> Call:
    """Return the call on some of its keys."""
    mask = call.attn_mask
    if mask is not None and mask.shape[-1] == call.key.shape[2]:
        mask = mask[..., keys]
    return call.but(key=call.key[:, :, keys], value=call.value[:, :, keys], attn_mask=mask)


def explicit(kernel: Kernel, problem: Problem) -> Call:
    """Return the problem's call with the causal triangle written into the mask, so that rows and keys may move.

    Raises NotSupported where the kernel takes no such mask.
    """
    call = make_call(problem)
    if problem.causal is None:
        return call
    kind = problem.mask.kind if problem.mask else "bool"
    kernel.need(problem.but(causal=None, mask=Mask(kind, "bhqk", "random")))
    seen = visible_set(problem, call)
    if call.attn_mask is None or call.attn_mask.dtype == torch.bool:
        return call.but(attn_mask=seen, is_causal=False)
    return call.but(attn_mask=call.attn_mask.expand(seen.shape).masked_fill(~seen, -torch.inf), is_causal=False)


def same(
    kernel: Kernel,
    problem: Problem,
    rule: str,
    how: str,
    call: Call,
    other: Call,
    view: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
) -> float:
    """Run both calls, bring the first result into the place of the second by `view`, and compare within both budgets:
    the output, and the lse where the calls ask for it.

    Returns the worst difference over the sum of the budgets. Raises Violation of the rule; how: the second call, in
    words.
    """
    budgets = [budget_of(kernel, problem, each) for each in (call, other)]
    first = kernel(call)
    expected = Result(*(None if x is None else view(x.double()).clone() for x in first[:2]))  # type: ignore[arg-type]
    allowed = Result(*(view(getattr(budgets[0], x)).abs() + getattr(budgets[1], x) for x in ("output", "lse")))
    return difference(problem, rule, how, kernel(other), expected, allowed)


def difference(problem: Problem, rule: str, how: str, got: Result, expected: Result, allowed: Result) -> float:
    """Return how far a result is from what is expected, output and lse where there is one, over what is allowed.

    Raises Violation of the rule where that is more than 1; how: the call that gave it, in words.
    """
    wide = FLOAT64 if problem.dtype == FLOAT64.name else FLOAT32
    worst = 0.0
    for name, axes, fmt in (("output", OUTPUT_AXES, format_named(problem.dtype)), ("lse", LSE_AXES, wide)):
        if getattr(expected, name) is None:
            continue
        found = compare(getattr(got, name), getattr(expected, name), getattr(allowed, name), fmt)
        if not found.holds:
            times = found.error_over_budget
            off = f"differs by {times:.4g} times what two honest runs may" if math.isfinite(times) else found.what
            raise Violation(rule, f"{how}, the {name} {off}", found.details(name, axes), found.error_over_budget)
        worst = max(worst, found.error_over_budget)
    return worst


def shuffled(problem: Problem, size: int) -> torch.Tensor:
    """Return a permutation of `size` indices that the problem's seed fixes."""
    return torch.from_numpy(Source(problem.seed).uniform("order", (size,)).argsort(kind="stable"))
