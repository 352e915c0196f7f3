"""Regimes: problems made to show a lack of precision, against the float64 reference within the error budget."""

from __future__ import annotations

from attnspec.conformance.case import Case
from attnspec.conformance.judgement import judge_against_reference
from attnspec.conformance.kernel import Kernel
from attnspec.golden.inputs import make_call


def output_stays_within_budget(kernel: Kernel, case: Case) -> float:
    """The output lies within the error budget of the exact one."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    return judge_against_reference(kernel, case.problem, call, kernel(call))


def lse_stays_within_budget(kernel: Kernel, case: Case) -> float:
    """Asked for the lse, the kernel returns output and lse within their budgets of the exact ones."""
    kernel.need(case.problem, return_lse=True)
    call = make_call(case.problem).but(return_lse=True)
    return judge_against_reference(kernel, case.problem, call, kernel(call))
