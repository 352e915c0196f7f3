"""Dropout: the mask is read off the kernel through Q = 0 and V = identity, then everything is held against that mask.

A kernel draws from torch's global generator, which each check seeds with `torch.manual_seed` before the call: the
seeds are those of the problems, so that a kernel is judged by the same draws each time. See chapter "dropout".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.checks.gradients import with_lse
from attnspec.conformance.checks.laws import need_same_bits, same_bits
from attnspec.conformance.checks.probes import AXES, identity_readout, share
from attnspec.conformance.comparison import compare
from attnspec.conformance.dropout_budget import dropout_budget, dropout_gradient_budget
from attnspec.conformance.judgement import (
    LSE_AXES,
    OUTPUT_AXES,
    budget_of,
    need_refusals,
    scores_in_range,
    twice_if_double,
    visible_set,
)
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.reference import grouped_heads
from attnspec.reference.attention import answer
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call, Gradients
from attnspec.spec.dtypes import FLOAT32, FLOAT64, format_named
from attnspec.spec.problem import Problem

SIGMAS = 5  # of chance that a share or a mean may be off (`dropout.rate`, `dropout.unbiased`)
SHIFT_SIGMAS = 7  # the same for the agreement of the mask with itself at every shift, thousands at once
SEEDS = 48  # over which a mean is taken
NO_PROBABILITIES = (-0.25, 1.25, -1e-9, math.nan, math.inf, -math.inf)


def seeded(kernel: Kernel, seed: int) -> Kernel:
    """Return the kernel with torch's global generator seeded before each call."""

    def run(*tensors: torch.Tensor, **options: Any) -> Any:
        torch.manual_seed(seed)
        return kernel.run(*tensors, **options)

    return replace(kernel, run=run)


def call_of(kernel: Kernel, problem: Problem) -> Call:
    """Return a problem's call. Raises NotSupported where the kernel does not claim it, or the problem drops nothing."""
    kernel.need(problem)
    if not problem.dropout:
        raise NotSupported("the check needs a problem with dropout", declared=True)
    call = make_call(problem)
    if not scores_in_range(call, kernel.capabilities.accuracy):
        raise NotSupported(f"scores beyond the range of class {kernel.capabilities.accuracy}", declared=True)
    return call


def drawn(kernel: Kernel, problem: Problem, call: Call) -> torch.Tensor:
    """Return which visible weights the kernel keeps under the problem's seed, bool (batch, q_heads, q_len, k_len)."""
    read = identity_readout(seeded(kernel, problem.seed), call.but(return_lse=False))
    return (read != 0) & visible_set(problem, call)


def judge_output(kernel: Kernel, problem: Problem, call: Call, keep: torch.Tensor, output: torch.Tensor) -> float:
    """Return the worst error over budget of an output, given the mask. Raises Violation (`dropout.on-weights`)."""
    corner = problem.corner
    truth = answer(call, corner, keep).output
    budget = dropout_budget(call, keep, causal_alignment=corner, accuracy=kernel.capabilities.accuracy)
    found = compare(output, truth, twice_if_double(problem, budget), format_named(problem.dtype))
    if not found.holds:
        what = "the output is not the sum of the kept weights times their values, over 1 - p"
        details = found.details("output", OUTPUT_AXES)
        raise Violation("dropout.on-weights", what, details, found.error_over_budget)
    return found.error_over_budget


def kept_weights_are_scaled_up_and_others_0(kernel: Kernel, case: Case) -> float:
    """With Q = 0 and V = identity every weight that comes back is p_ij / (1 - p) or exactly 0, and 0 where hidden."""
    problem = case.problem
    call = call_of(kernel, problem)
    read = identity_readout(seeded(kernel, problem.seed), call)
    visible = visible_set(problem, call)
    seen = (read != 0) & ~visible
    if bool(seen.any()):
        rule = next((rule for rule in case.rules if rule.startswith(("mask.", "key-lengths."))), "dropout.on-weights")
        raise Violation(rule, "with dropout, hidden keys have weights that are not 0", (("pattern", share(seen)),))
    identity = torch.eye(problem.k_len, dtype=call.value.dtype).expand(*call.value.shape[:3], -1).contiguous()
    probe = call.but(query=torch.zeros_like(call.query), value=identity)
    corner = problem.corner
    budget = dropout_budget(probe, read != 0, causal_alignment=corner, accuracy=kernel.capabilities.accuracy)
    truth = answer(probe, corner, read != 0).output
    found = compare(read, truth, twice_if_double(problem, budget), format_named(problem.dtype))
    if not found.holds:
        ratio = float((found.got / truth)[truth > 0].median())
        what = f"weights that are kept are not p_ij / (1 - p) with p = {problem.dropout}, but {ratio:.4g} times that"
        raise Violation("dropout.inverted", what, found.details("weight", AXES), found.error_over_budget)
    return found.error_over_budget


def output_is_that_of_the_kept_weights(kernel: Kernel, case: Case) -> float:
    """The output is the sum of the kept weights times their values, over 1 - p, with the mask that the same seed gives
    under Q = 0."""
    problem = case.problem
    call = call_of(kernel, problem)
    keep = drawn(kernel, problem, call)
    return judge_output(kernel, problem, call, keep, seeded(kernel, problem.seed)(call).output)


def lse_knows_nothing_of_dropout(kernel: Kernel, case: Case) -> float:
    """With dropout the lse is that of the call without it, within the budget."""
    problem = case.problem
    kernel.need(problem, return_lse=True)
    call = call_of(kernel, problem)
    lse = seeded(kernel, problem.seed)(call.but(return_lse=True)).lse
    plain = call.but(dropout_p=0.0)
    truth = answer(plain, problem.corner).lse
    assert lse is not None, "asked for with return_lse"
    assert truth is not None, "the reference gives it"
    budget = twice_if_double(problem, budget_of(kernel, problem, plain).lse)
    found = compare(lse, truth, budget, FLOAT64 if problem.dtype == FLOAT64.name else FLOAT32)
    if not found.holds:
        what = "with dropout the lse is not that of the scores"
        raise Violation("dropout.lse", what, found.details("lse", LSE_AXES), found.error_over_budget)
    return found.error_over_budget


def weights_are_dropped_at_the_rate_asked_for(kernel: Kernel, case: Case) -> None:
    """Of all weights, and of each batch element, head, row and key, the share that is dropped is p within 5 standard
    errors; the mask shifted along any axis agrees with itself by no more than chance."""
    problem = case.problem
    call = call_of(kernel, problem)
    lost = (~drawn(kernel, problem, call) & visible_set(problem, call)).double()
    p = call.dropout_p
    shift, agreement = most_alike_shift(lost)
    alike = agreement > SHIFT_SIGMAS * p * (1 - p) / math.sqrt(lost.numel())
    steps = ", ".join(f"{axis} + {step}" for axis, step in zip(AXES, shift, strict=True) if step)
    if alike and torch.equal(lost.roll(shift, (0, 1, 2, 3)), lost):
        raise Violation("dropout.seed", f"the mask is the same everywhere at {steps}: one draw serves many weights")
    for part, shares, count in shares_of(lost):
        off = (shares - p).abs() > SIGMAS * math.sqrt(p * (1 - p) / count)
        if bool(off.any()):
            worst = int((shares - p).abs().argmax())
            where = f"of {part} {worst}" if shares.ndim else "of all weights"
            what = f"{float(shares.flatten()[worst]):.4g} {where} are dropped, with p = {p:g}"
            raise Violation("dropout.rate", what, (("pattern", f"{int(off.sum())} of {off.numel()} {part} shares"),))
    if alike:
        raise Violation("dropout.rate", f"a weight and that at {steps} are not dropped independently")


def shares_of(lost: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, float]]:
    """Yield what is looked at, the share of its weights that is dropped, and how many weights it has."""
    yield "whole", lost.mean(), lost.numel()
    for axis, name in enumerate(AXES):
        shares = lost.mean([other for other in range(4) if other != axis])
        yield name, shares, lost.numel() / len(shares)


def most_alike_shift(lost: torch.Tensor) -> tuple[tuple[int, ...], float]:
    """Return the circular shift of a mask at which it agrees most with itself, and the covariance there, from the
    spectrum (the Wiener-Khinchin theorem)."""
    centred = lost - lost.mean()
    products = torch.fft.ifftn(torch.fft.fftn(centred).abs() ** 2).real / centred.numel()
    products[0, 0, 0, 0] = 0.0
    at = torch.unravel_index(products.argmax(), products.shape)
    return tuple(int(i) for i in at), float(products.max())


def a_seed_names_its_mask(kernel: Kernel, case: Case) -> None:
    """The same seed gives the same mask and the same bits; another seed, and the next call, another mask."""
    problem = case.problem
    call = call_of(kernel, problem)
    first, other = (drawn(kernel, problem.but(seed=problem.seed + n), call) for n in (0, 1))
    if not torch.equal(first, drawn(kernel, problem, call)):
        raise Violation("dropout.seed", "the same seed of torch's generator gives another mask the second time")
    if torch.equal(first, other):
        raise Violation("dropout.seed", "another seed of torch's generator gives the same mask")
    torch.manual_seed(problem.seed)
    if torch.equal(identity_readout(kernel, call), identity_readout(kernel, call)):
        raise Violation("dropout.seed", "two calls in a row draw the same mask")
    if kernel.capabilities.deterministic:
        before, after = (seeded(kernel, problem.seed)(call).output.clone() for _ in range(2))
        same_bits("dropout.seed", "the same seed gives other bits the second time", before, after)


def mean_over_seeds_is_the_plain_output(kernel: Kernel, case: Case) -> None:
    """Over 48 seeds the mean of the output is that without dropout, within 5 standard errors and the budget."""
    problem = case.problem
    call = call_of(kernel, problem)
    corner, p = problem.corner, call.dropout_p
    plain = call.but(dropout_p=0.0)
    truth = answer(plain, corner)
    assert truth.weights is not None, "the reference returns its weights"
    values = grouped_heads.expand(call.value.double(), problem.q_heads)
    variance = p / (1 - p) * (truth.weights**2 @ values**2)  # of one output; (batch, q_heads, q_len, value_dim)
    seeds = range(problem.seed, problem.seed + SEEDS)
    mean = torch.stack([seeded(kernel, seed)(call).output.double() for seed in seeds]).mean(0)
    every = torch.ones_like(truth.weights, dtype=torch.bool)
    budget = dropout_budget(call, every, causal_alignment=corner, accuracy=kernel.capabilities.accuracy)
    found = compare(mean, truth.output, SIGMAS * torch.sqrt(variance / SEEDS) + budget, FLOAT64)
    if not found.holds:
        what = f"the mean over {SEEDS} seeds is {SIGMAS * found.error_over_budget:.3g} standard errors off"
        raise Violation("dropout.unbiased", what, found.details("mean", OUTPUT_AXES))


def p_0_is_no_dropout(kernel: Kernel, case: Case) -> None:
    """Told `dropout_p=0.0`, under another seed, the kernel gives the bits that it gives without being told."""
    problem = case.problem
    need_same_bits(kernel)
    call = kernel.asking_for_lse(call_of(kernel, problem).but(dropout_p=0.0), problem)
    plain = seeded(kernel, problem.seed)
    told = seeded(replace(kernel, run=partial(kernel.run, dropout_p=0.0)), problem.seed + 1)
    before = [tensor.clone() for tensor in plain(call)[:2] if tensor is not None]
    after = [tensor for tensor in told(call)[:2] if tensor is not None]
    for untold, zero in zip(before, after, strict=True):
        same_bits("dropout.zero", "with dropout_p=0.0 the result has other bits than without", untold, zero)


def p_1_drops_every_weight(kernel: Kernel, case: Case) -> None:
    """With p = 1 the output is 0 in every element."""
    output = kernel(call_of(kernel, case.problem).but(dropout_p=1.0)).output
    if not bool((output == 0).all()):
        seen = "NaN" if bool(output.isnan().any()) else f"{float(output.abs().max()):.4g} at the most"
        raise Violation("dropout.one", f"with p = 1 the output is {seen}; it should be 0")


def p_1_passes_no_gradient(kernel: Kernel, case: Case) -> None:
    """With p = 1 every gradient of the output is 0."""
    call = call_of(kernel, case.problem).but(dropout_p=1.0, return_lse=False, grad_lse=None)
    got = kernel.gradients(call)[1]
    for name in ("query", "key", "value"):
        gradient = getattr(got, name)
        if not bool((gradient == 0).all()):
            seen = "NaN" if bool(gradient.isnan().any()) else f"{float(gradient.abs().max()):.4g} at the most"
            raise Violation("dropout.one", f"with p = 1 the gradient of {name} is {seen}; it should be 0")


def gradients_pass_the_mask_of_the_forward(kernel: Kernel, case: Case) -> float:
    """The gradients lie within the budget of the closed form with the mask that the forward drew."""
    problem = case.problem
    call = with_lse(call_of(kernel, problem), problem)
    corner = problem.corner
    keep = drawn(kernel, problem, call)
    result, back = seeded(kernel, problem.seed).forward(call)
    torch.rand(7)  # what others draw between the passes moves no mask
    generator = torch.get_rng_state()
    got = back()
    if not torch.equal(generator, torch.get_rng_state()):
        raise Violation("dropout.backward-mask", "the backward pass moves torch's generator: the next draws change")
    worst = judge_output(kernel, problem, call, keep, result.output)
    truth = gradients(call, corner, keep)
    budgets = dropout_gradient_budget(call, keep, causal_alignment=corner, accuracy=kernel.capabilities.accuracy)
    for name in ("value", "query", "key"):
        worst = max(worst, judge_gradient(problem, name, got, truth, budgets))
    return worst


def judge_gradient(problem: Problem, name: str, got: Gradients, truth: Gradients, budgets: Gradients) -> float:
    """Return the worst error over budget of one gradient. Raises Violation (`dropout.backward-mask`)."""
    given, true, budget = (getattr(x, name) for x in (got, truth, budgets))
    found = compare(given, true, twice_if_double(problem, budget), format_named(problem.dtype))
    if not found.holds:
        what = f"the gradient of {name} is not that of the forward with the mask that it drew"
        details = found.details(f"grad_{name}", ("batch", "head", "row" if name == "query" else "key", "column"))
        raise Violation("dropout.backward-mask", what, details, found.error_over_budget)
    return found.error_over_budget


def p_that_is_no_probability_is_refused(kernel: Kernel, case: Case) -> None:
    """A p below 0, above 1, or NaN ends in an exception."""
    call = kernel.place(call_of(kernel, case.problem))
    kernel(call)
    need_refusals(kernel, "dropout.range", ((f"dropout_p={p}", call.but(dropout_p=p)) for p in NO_PROBABILITIES))
