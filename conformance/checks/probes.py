"""Probes: inputs under which the output names what the kernel read. Decoded, then compared exactly."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.judgement import visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import Violation
from attnspec.conformance.pattern import describe, ranges
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call
from attnspec.spec.exercised import rules_exercised
from attnspec.spec.problem import Problem

MASK_RULES = ("mask.key-padding", "mask.broadcast", "mask.bool", "mask.additive")
AXES = ("batch", "head", "row", "key")


def visible_set_is_exact(kernel: Kernel, case: Case) -> None:
    """With Q = 0 and V = identity, the nonzero outputs of a row are the keys that it sees: exactly the visible set."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    read = identity_readout(kernel, call) != 0  # NaN counts as read
    expected = visible_set(problem, call)
    wrong = read != expected
    if bool(wrong.any()):
        raise Violation(
            broken_rule(problem, call, read), row_in_words(read, expected, wrong), (("pattern", share(wrong)),)
        )


def broken_rule(problem: Problem, call: Call, read: torch.Tensor) -> str:
    """Return the id of the rule that a wrong visible set breaks.

    Wrong in empty rows alone: the empty row's. One of mask and causal triangle explains what was read: the other was
    dropped, `mask.combine`. Else the rule of the option there is; of both, the mask's where the triangle is respected.
    """
    expected = visible_set(problem, call)
    if not bool(((read != expected) & expected.any(-1, keepdim=True)).any()):
        return "mask.fully-masked-row"
    triangle, mask = (
        visible_set(problem, call.but(**dropped)) for dropped in ({"attn_mask": None}, {"is_causal": False})
    )
    if call.is_causal and call.attn_mask is not None and any(torch.equal(read, alone) for alone in (triangle, mask)):
        return "mask.combine"
    exercised = rules_exercised(problem)
    if call.is_causal and (call.attn_mask is None or bool((read & ~triangle).any())):
        return next(rule for rule in exercised if rule.startswith("mask.causal"))
    return next((rule for rule in exercised if rule in MASK_RULES), "attention.output")


def identity_readout(kernel: Kernel, call: Call) -> torch.Tensor:
    """Return the weight that each row gives each key under Q = 0: (batch, q_heads, q_len, k_len), in the query's
    dtype.

    The identity is handed over in slices of value_dim columns, one call a slice, since fused kernels bound value_dim.
    """
    k_len, width = call.key.shape[2], call.value.shape[3]
    columns = []
    for start in range(0, k_len, width):
        value = torch.zeros_like(call.value)
        for column in range(min(width, k_len - start)):
            value[:, :, start + column, column] = 1
        probe = call.but(query=torch.zeros_like(call.query), value=value)
        columns.append(kernel(probe).output[..., : k_len - start].clone())  # the kernel may reuse its memory
    return torch.cat(columns, dim=-1)


def row_in_words(read: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """Say of the first wrong row which keys it sees and which it should see."""
    batch, head, row, _ = (int(i) for i in wrong.nonzero()[0])
    k_len = wrong.shape[-1]
    sees, should = (
        ranges(t[batch, head, row].nonzero().flatten().tolist(), k_len) or "no key" for t in (read, expected)
    )
    return f"batch {batch}, head {head}, row {row} sees keys {sees}; it should see {should}"


def share(wrong: torch.Tensor) -> str:
    """Say how many slots are wrong and where, on which diagonals if on few."""
    slots = wrong.nonzero()
    diagonals = sorted(set((slots[:, 3] - slots[:, 2]).tolist()))
    few = len(diagonals) <= 3 < len(slots)
    on = f", on the diagonals key - row = {', '.join(map(str, diagonals))}" if few else ""
    return f"{len(slots)} of {wrong.numel()} slots: {describe(wrong, AXES)}{on}"


def query_heads_read_their_group(kernel: Kernel, case: Case) -> None:
    """With V = h in key head h, every output of query head i is floor(i / group), whatever the weights are."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    heads = torch.arange(problem.kv_heads, dtype=call.value.dtype)  # small integers, exact in every dtype
    value = (heads[None, :, None, None]).expand_as(call.value).contiguous()
    output = kernel(call.but(value=value)).output
    group = problem.q_heads // problem.kv_heads
    expected = torch.arange(problem.q_heads) // group
    read = output.double().round()  # the weights sum to 1 within far less than one half
    wrong = read != expected[None, :, None, None]
    if bool(wrong.any()):
        got = [int(x) if x == x else "NaN" for x in read[0, :, 0, 0].tolist()]
        what = f"query heads 0 to {problem.q_heads - 1} read key heads {got}; they should read {expected.tolist()}"
        rule = "grouped.multi-query" if problem.kv_heads == 1 else "grouped.head-map"
        raise Violation(rule, what, (("pattern", describe(wrong, ("batch", "head", "row", "column"))),))
