"""Running one case in this process: what a refusal means, and whether it was allowed."""

from __future__ import annotations

from functools import cache

import torch

from attnspec.conformance import signature
from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import BY_NAME
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.spec.problem import Problem

TRIED = frozenset(signature.TRIED)
USUAL_HEAD_DIMS = (64, 128, 32, 16)


def run_case(kernel: Kernel, case: Case) -> float | None:
    """Run a case's check on the kernel and return the worst error over budget, None where the check has no budget.

    Raises Violation, where a bare callable refuses what the profile `core` holds too, and NotSupported. Rule:
    `profile.core`.
    """
    with torch.no_grad():
        try:
            return BY_NAME[case.check].body(kernel, case)
        except NotSupported as refusal:
            if refusal.declared:
                raise
            if TRIED.intersection(case.problem.features()) or may_refuse(kernel, case.problem.head_dim):
                raise NotSupported(refusal.reason, declared=True) from None  # found out by trying: never claimed
            if "core" not in case.profiles:
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
