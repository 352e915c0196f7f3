"""Regimes: problems made to show a lack of precision, against the float64 reference within the error budget."""

from __future__ import annotations

from attnspec.conformance import trends
from attnspec.conformance.case import Case, Ran
from attnspec.conformance.covering import fallbacks
from attnspec.conformance.draws import fitted
from attnspec.conformance.judgement import budget_of, judge, judge_against_reference, lse_of
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.reference.attention import answer


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


def options_combine(kernel: Kernel, case: Case) -> Ran:
    """A row of the covering array, fitted to the kernel, lies within the error budget."""
    refusals = []
    for problem in fallbacks(fitted(case.problem, kernel)):
        try:
            kernel.need(problem)
            call = make_call(problem)
            error = judge_against_reference(kernel, problem, call, kernel(call))
        except NotSupported as refusal:
            refusals.append(refusal)
            continue
        except Violation as found:
            found.case = case.on(problem)
            raise
        return Ran(error, problem)
    raise refusals[0]


def no_wrong_scale_hides_in_the_noise(kernel: Kernel, case: Case) -> float:
    """The errors of the output, taken together, do not point to a wrong scale."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    truth = answer(call, case.problem.corner)
    result = kernel(call)
    error = judge(kernel, case.problem, call, result, truth)
    found = trends.temperature(call, result.output, truth, budget_of(kernel, case.problem, call))
    if found.over > 1:
        what = f"the output is that of a scale off by {found.fitted:.3g}, {found.over:.3g} times what rounding allows"
        raise Violation("accuracy.temperature", what, error_over_budget=found.over)
    return error


def lse_has_no_bias(kernel: Kernel, case: Case) -> float:
    """The signed mean of the lse's errors is no larger than rounding allows."""
    kernel.need(case.problem, return_lse=True)
    call = make_call(case.problem).but(return_lse=True)
    truth = answer(call, case.problem.corner)
    result = kernel(call)
    error = judge(kernel, case.problem, call, result, truth)
    found = trends.mean_of_lse(call, lse_of(result), truth, budget_of(kernel, case.problem, call))
    if found.over > 1:
        what = f"the lse is off by {found.fitted:.3g} on average, {found.over:.3g} times what rounding allows"
        raise Violation("accuracy.lse-mean", what, error_over_budget=found.over)
    return error
