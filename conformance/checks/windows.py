"""Windows: what a window must be the same as, and which windows there are not."""

from __future__ import annotations

from attnspec.conformance.case import Case
from attnspec.conformance.checks.relations import same
from attnspec.conformance.judgement import call_with_lse, need_refusals, visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.golden.inputs import make_call
from attnspec.spec.problem import Mask


def a_window_equals_its_mask(kernel: Kernel, case: Case) -> float:
    """A window, beside the causal triangle or alone, gives output and lse of the boolean mask that hides the same."""
    problem = case.problem
    call = call_with_lse(kernel, problem)
    kernel.need(problem.but(causal=None, window=None, mask=Mask("bool", "qk", "random")))
    seen = visible_set(problem, call)[0, 0]  # (q_len, k_len): the same for all without another mask
    masked = call.but(window_size=None, is_causal=False, attn_mask=seen)
    return same(kernel, problem, "window.bounds", "with a mask in place of the window", call, masked)


def a_window_beyond_all_keys_is_none(kernel: Kernel, case: Case) -> float:
    """A window that reaches beyond every key, or has no bounds, gives output and lse of the call without one."""
    problem = case.problem
    call = call_with_lse(kernel, problem)
    none = call.but(window_size=None)
    far = problem.q_len + problem.k_len
    worst = 0.0
    for window in ((far, far), (-1, -1), (-1, far), (far, -1), (2**31 - 1, 2**31 - 1)):
        how = f"with window_size={window}, which hides nothing"
        worst = max(worst, same(kernel, problem, "window.unbounded", how, none, call.but(window_size=window)))
    return worst


def impossible_windows_are_refused(kernel: Kernel, case: Case) -> None:
    """A window with a side below -1 ends in an exception."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    windows = ((-2, 0), (0, -2), (-3, -3), (3, -7))
    wrong = ((f"window_size={window}", call.but(window_size=window)) for window in windows)
    need_refusals(kernel, "window.range", wrong)
