"""ALiBi: what is true of it whatever the slopes, and the slopes that no call fits."""

from __future__ import annotations

import torch

from attnspec.conformance.budget import positions_of
from attnspec.conformance.case import Case
from attnspec.conformance.checks.relations import same
from attnspec.conformance.judgement import call_with_lse, judge_against_reference, need_refusals
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported
from attnspec.spec.problem import Mask


def slopes_of_each_batch_element_are_its_own(kernel: Kernel, case: Case) -> float:
    """Slopes of shape (batch, q_heads) give each batch element its own, whatever their sign."""
    call = call_with_lse(kernel, case.problem)
    assert call.alibi_slopes is not None, "a problem with slopes"
    factors = torch.tensor([1.0, -1.0]).repeat(len(call.query))[: len(call.query), None]
    given = call.but(alibi_slopes=factors * call.alibi_slopes)
    return judge_against_reference(kernel, case.problem, given, kernel(given))


def alibi_equals_its_mask(kernel: Kernel, case: Case) -> float:
    """The result is that of the call without slopes whose additive mask is minus slope times distance."""
    problem = case.problem
    kernel.need(problem.but(alibi=None, mask=Mask("float", "bhqk", "bias")))
    if problem.dtype != "float32":
        raise NotSupported("a mask of another dtype rounds the bias", declared=True)
    call = call_with_lse(kernel, problem)
    shape = (*call.query.shape[:3], call.key.shape[2])
    bias = positions_of(call, shape)
    assert bias is not None, "a problem with slopes"
    masked = call.but(alibi_slopes=None, attn_mask=bias.float())
    return same(kernel, problem, "alibi.bias", "as an additive mask", masked, call)


def slopes_of_0_are_none(kernel: Kernel, case: Case) -> float:
    """With every slope 0 the result is that of the call without slopes; with one of them, it is that of its head."""
    call = call_with_lse(kernel, case.problem)
    assert call.alibi_slopes is not None, "a problem with slopes"
    worst = 0.0
    for heads in (slice(None), slice(0, 1)):
        slopes = call.alibi_slopes.clone()
        slopes[heads] = 0.0
        given = call.but(alibi_slopes=slopes)
        worst = max(worst, judge_against_reference(kernel, case.problem, given, kernel(given)))
    return worst


def slopes_of_another_shape_are_refused(kernel: Kernel, case: Case) -> None:
    """One slope for all heads, one a key head, a number too many, or a slope a row is refused."""
    call = kernel.place(call_with_lse(kernel, case.problem))
    assert call.alibi_slopes is not None, "a problem with slopes"
    kernel(call)
    batch, heads, q_len, _ = call.query.shape
    slopes = call.alibi_slopes
    shapes = ((), (1,), (call.key.shape[1],), (heads + 1,), (batch + 1, heads), (batch, heads, q_len))
    wrong = ((f"alibi_slopes of shape {shape}", call.but(alibi_slopes=slopes.new_zeros(shape))) for shape in shapes)
    need_refusals(kernel, "alibi.shape", wrong)
