"""Golden checks: the certified vectors, compared within the error budget."""

from __future__ import annotations

from attnspec.conformance.case import Case
from attnspec.conformance.judgement import judge
from attnspec.conformance.kernel import Kernel
from attnspec.golden.store import load
from attnspec.spec.call import Result


def output_matches_golden(kernel: Kernel, case: Case) -> float:
    """The output lies within the error budget of the certified one."""
    kernel.need(case.problem)
    golden = load(case.name)
    result = kernel(golden.call)
    return judge(kernel, case.problem, golden.call, result, Result(golden.output), certified=True)


def lse_matches_golden(kernel: Kernel, case: Case) -> float:
    """Asked for the lse, the kernel returns output and lse within their budgets of the certified ones."""
    kernel.need(case.problem, return_lse=True)
    golden = load(case.name)
    call = golden.call.but(return_lse=True)
    return judge(kernel, case.problem, call, kernel(call), Result(golden.output, golden.lse), certified=True)
