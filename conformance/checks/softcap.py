"""Softcap: what a cap does to a row of two keys, the caps that do nothing, and the caps that there are not."""

from __future__ import annotations

import math

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.checks.laws import same_bits
from attnspec.conformance.checks.relations import difference, same
from attnspec.conformance.judgement import budget_of, call_with_lse, need_refusals
from attnspec.conformance.kernel import Kernel
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Result

LARGEST_SCORE = 9.0  # of the rows of two keys: far above the smaller cap, near the larger one


def two_keys_give_their_closed_form(kernel: Kernel, case: Case) -> float:
    """With keys of score 0 and s and values 0 and 1, the output is the logistic function of c tanh(s / c), and the lse
    its softplus."""
    problem = case.problem  # k_len is 2
    call = call_with_lse(kernel, problem)
    query, key, value = (torch.zeros_like(x) for x in (call.query, call.key, call.value))
    query[..., 0] = torch.linspace(-LARGEST_SCORE, LARGEST_SCORE, problem.q_len) * math.sqrt(problem.head_dim)
    key[..., 1, 0], value[..., 1, :] = 1.0, 1.0
    call = call.but(query=query, key=key, value=value)
    assert call.softcap, "a problem with a cap"
    scores = query[..., 0].double() / math.sqrt(problem.head_dim)  # (batch, q_heads, q_len), as they are stored
    capped = call.softcap * torch.tanh(scores / call.softcap)
    expected = Result(torch.sigmoid(capped)[..., None].expand(value.shape[0], -1, -1, value.shape[3]).contiguous())
    if call.return_lse:
        expected = expected._replace(lse=torch.nn.functional.softplus(capped))
    budget = budget_of(kernel, problem, call)
    twice = 2 if problem.dtype == "float64" else 1  # the closed form errs as much as the kernel
    allowed = Result(twice * budget.output, twice * budget.lse)
    return difference(problem, "softcap.scores", "of two keys", kernel(call), expected, allowed)


def a_cap_far_above_the_scores_is_none(kernel: Kernel, case: Case) -> float:
    """A cap far above every score gives output and lse of the call without one, and a cap of 0 its very bits."""
    problem = case.problem
    call = call_with_lse(kernel, problem)
    none = call.but(softcap=None)
    if kernel.capabilities.deterministic:
        pairs = zip(kernel(none)[:2], kernel(call.but(softcap=0.0))[:2], strict=True)
        for before, after in [pair for pair in pairs if pair[0] is not None]:
            assert before is not None and after is not None, "asked for alike"  # noqa: PT018
            same_bits("softcap.none", "a softcap of 0 changes the result", before, after)
    return same(kernel, problem, "softcap.none", f"with softcap={call.softcap:g}, far above", none, call)


def impossible_caps_are_refused(kernel: Kernel, case: Case) -> None:
    """A cap below 0, infinite or NaN ends in an exception."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    caps = (-1.0, -1e-30, math.inf, -math.inf, math.nan)
    need_refusals(kernel, "softcap.range", ((f"softcap={cap}", call.but(softcap=cap)) for cap in caps))
