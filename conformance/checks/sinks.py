"""Sinks: what is true of them whatever the scores, and the calls that no sink fits."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.judgement import call_with_lse, judge, judge_against_reference, need_refusals
from attnspec.conformance.kernel import Kernel
from attnspec.reference.attention import answer
from attnspec.spec.call import Result


def sinks_of_minus_infinity_are_none(kernel: Kernel, case: Case) -> float:
    """With every sink -inf the result is that of the call without sinks; with one of them, it is that of its head."""
    call = call_with_lse(kernel, case.problem)
    assert call.sinks is not None, "a problem with sinks"
    worst = 0.0
    for heads in (slice(None), slice(0, 1)):
        sinks = call.sinks.clone()
        sinks[heads] = -torch.inf
        given = call.but(sinks=sinks)
        worst = max(worst, judge_against_reference(kernel, case.problem, given, kernel(given)))
    return worst


def sinks_take_their_closed_form(kernel: Kernel, case: Case) -> float:
    """Where all scores of a row are 0 the output is the mean of the values times n / (n + e^z), and the lse
    log(n + e^z)."""
    call = call_with_lse(kernel, case.problem)
    assert call.sinks is not None, "a problem with sinks"
    sinks = call.sinks.double()[:, None]  # (q_heads, 1)
    call = call.but(query=torch.zeros_like(call.query))
    mean = answer(call.but(sinks=None), case.problem.corner)
    assert mean.lse is not None, "the reference gives the lse"
    lse = torch.logaddexp(mean.lse, sinks)  # (batch, q_heads, q_len), log n = -inf for none
    share = torch.exp(mean.lse - lse)[..., None]
    return judge(kernel, case.problem, call, kernel(call), Result(share * mean.output, lse))


def sinks_of_another_shape_are_refused(kernel: Kernel, case: Case) -> None:
    """One sink for all heads, one a key head, one a batch element and head, or a number too many is refused."""
    call = kernel.place(call_with_lse(kernel, case.problem))
    assert call.sinks is not None, "a problem with sinks"
    kernel(call)
    batch, heads = call.query.shape[:2]
    shapes = ((), (1,), (heads + 1,), (batch, heads), (1, heads, 1, 1))
    wrong = ((f"sinks of shape {shape}", call.but(sinks=call.sinks.new_zeros(shape))) for shape in shapes)
    need_refusals(kernel, "sinks.shape", wrong)
