"""The contract: what a call must leave alone, whatever the numbers are."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.checks.laws import same_bits
from attnspec.conformance.judgement import judge_against_reference
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call

TENSORS = ("query", "key", "value", "attn_mask")


def inputs_stay_unchanged(kernel: Kernel, case: Case) -> None:
    """After the call every input has the bits it had before."""
    kernel.need(case.problem)
    call = kernel.place(make_call(case.problem))
    given = {name: getattr(call, name) for name in TENSORS if getattr(call, name) is not None}
    before = {name: tensor.clone() for name, tensor in given.items()}
    kernel(call)
    for name, tensor in given.items():
        if not torch.equal(tensor, before[name]):
            raise Violation("contract.inputs-unchanged", f"the call changed {name}")


def outputs_share_no_memory(kernel: Kernel, case: Case) -> None:
    """The output is memory of its own: overwriting the inputs, or calling again, leaves it as it was."""
    kernel.need(case.problem)
    call = kernel.place(make_call(case.problem))
    output = kernel.returned(call).output
    kept = output.clone()
    kernel(kernel.place(make_call(case.problem.but(seed=case.problem.seed + 1))))
    same_bits("contract.no-alias", "a later call overwrites an earlier output", kept, output)
    for name in ("query", "key", "value"):
        getattr(call, name).zero_()
    same_bits("contract.no-alias", "the output changes when the caller overwrites the inputs", kept, output)


def results_repeat_bit_for_bit(kernel: Kernel, case: Case) -> None:
    """The same call gives the same bits, also after another call."""
    if not kernel.capabilities.deterministic:
        raise NotSupported("deterministic is declared as false", declared=True)
    kernel.need(case.problem)
    call = make_call(case.problem)
    first = kernel(call).output
    kernel(make_call(case.problem.but(seed=case.problem.seed + 1)))
    same_bits("contract.deterministic", "the same call gives other bits the second time", first, kernel(call).output)


def storage_layout_does_not_matter(kernel: Kernel, case: Case) -> float:
    """Views of (batch, length, heads, dim) storage, gapped storage and expanded storage, each tensor another, give the
    exact output within the budget."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    worst = 0.0
    for turn in range(3):
        views = {name: LAYOUTS[(turn + i) % 3](getattr(call, name)) for i, name in enumerate(TENSORS[:3])}
        placed = call.but(**views)
        try:
            worst = max(worst, judge_against_reference(kernel, case.problem, call, kernel(placed)))
        except Violation as found:
            judge_against_reference(kernel, case.problem, call, kernel(call))  # wrong in any layout
            names = ", ".join(f"{name} {LAYOUTS[(turn + i) % 3].__name__}" for i, name in enumerate(TENSORS[:3]))
            raise Violation(
                "contract.layouts", f"{found.what}, with {names}", found.details, found.error_over_budget
            ) from None
    return worst


def length_first(x: torch.Tensor) -> torch.Tensor:
    """The same values as a view of (batch, length, heads, dim) storage."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def gapped(x: torch.Tensor) -> torch.Tensor:
    """The same values in storage with a gap after every row, filled with NaN, and at the start."""
    batch, heads, length, dim = x.shape
    room = torch.full((batch, heads, length + 1, dim + 8), torch.nan, dtype=x.dtype)
    room[:, :, 1:, :dim] = x
    return room[:, :, 1:, :dim]


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """The same values as a view of (heads, batch, length, dim) storage."""
    return x.transpose(0, 1).contiguous().transpose(0, 1)


LAYOUTS = (length_first, gapped, heads_first)


def zero_lengths_give_zero_or_nothing(kernel: Kernel, case: Case) -> float:
    """No keys: output 0 and lse -inf. No queries, batch or heads: an empty output."""
    kernel.need(case.problem)
    if "empty" not in kernel.capabilities.features:
        raise NotSupported("empty (no queries or no keys) is not declared", declared=True)
    call = make_call(case.problem)
    return judge_against_reference(kernel, case.problem, call, kernel(call))
