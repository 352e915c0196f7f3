"""Running one case in this process: what a refusal means, and whether it was allowed."""

from __future__ import annotations

from functools import cache

import torch

from attnspec.conformance.case import Case, Ran
from attnspec.conformance.catalogue import BY_NAME
from attnspec.conformance.draws import try_drawn
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.spec.problem import Problem

USUAL_HEAD_DIMS = (64, 128, 32, 16, 8, 24, 40, 48, 72, 80, 96, 112, 192, 256)
TAKES_EMPTY = ("golden", "regime")  # families whose checks make sense without keys or rows


def run_case(kernel: Kernel, case: Case) -> Ran:
    """Run a case's check on the kernel and return the worst error over budget, None where the check has no budget, and
    the problem that ran where it is not the case's.

    Raises Violation, where a bare callable refuses what the profile `core` holds too, and NotSupported. Rule:
    `profile.core`.
    """
    needs_elements = case.family not in TAKES_EMPTY and "attention.zero-length" not in case.check_rules
    if needs_elements and "empty" in case.problem.features():
        raise NotSupported("the check needs a batch, a row and a key", declared=True)
    with torch.no_grad():
        try:
            body = BY_NAME[case.check].body
            found = try_drawn(body, kernel, case, case.draw) if case.draw else body(kernel, case)
            return found if isinstance(found, Ran) else Ran(found)
        except NotSupported as refusal:
            head_dims = refusal.head_dims or (case.problem.head_dim,)
            if refusal.declared or "core" not in case.profiles or all(may_refuse(kernel, dim) for dim in head_dims):
                raise
            raise Violation("profile.core", f"a call that every kernel must run: {refusal.reason}") from None


@cache
def may_refuse(kernel: Kernel, head_dim: int) -> bool:
    """Whether the kernel refuses every core call of this head_dim, but runs one of another."""
    return not runs(kernel, head_dim) and any(runs(kernel, other) for other in USUAL_HEAD_DIMS)


@cache
def runs(kernel: Kernel, head_dim: int) -> bool:
    """Whether any plain float32 call of this head_dim ends in a result, right or wrong."""
    for q_len, k_len in ((64, 64), (128, 128), (17, 33)):
        try:
            kernel(make_call(Problem(q_len=q_len, k_len=k_len, head_dim=head_dim, q_heads=2)))
        except NotSupported:
            continue
        except Violation:
            return True
        return True
    return False
