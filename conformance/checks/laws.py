"""Laws: what must hold between two runs of the kernel, with no other truth at hand."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.judgement import OUTPUT_AXES, visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import Violation
from attnspec.conformance.pattern import describe
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call

HIDDEN_KEY_FACTOR = 16.0  # the hidden scores stay finite in float32 for every problem of the catalogue


def hidden_keys_have_no_influence(kernel: Kernel, case: Case) -> None:
    """Other finite keys and values in slots that no row sees change no bit of the output."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    before = kernel(call).output
    after = kernel(with_other_hidden_keys(call, visible_set(case.problem, call))).output
    same_bits("mask.hidden-values", "other keys and values in hidden slots change the output", before, after)


def with_other_hidden_keys(call: Call, visible: torch.Tensor) -> Call:
    """Return the call with large keys and values of alternating sign where no row of any head sees the key."""
    kv_batch, kv_heads, k_len, _ = call.key.shape
    batch, q_heads = visible.shape[:2]
    seen = visible.any(2).reshape(batch, kv_heads, q_heads // kv_heads, k_len).any(2)  # (batch, kv_heads, k_len)
    hidden = ~(seen.any(0, keepdim=True) if kv_batch == 1 else seen)[..., None]  # (kv_batch, kv_heads, k_len, 1)
    sign = 1 - 2 * (torch.arange(k_len)[:, None] % 2)
    key = torch.where(hidden, sign * HIDDEN_KEY_FACTOR * (1 + call.key.abs()), call.key)
    value = torch.where(hidden, -sign * 1000.0, call.value)
    return call.but(key=key.to(call.key.dtype), value=value.to(call.value.dtype))


def visible_nan_comes_through(kernel: Kernel, case: Case) -> None:
    """A NaN in one column of a visible value gives NaN in that column of every row that sees the key, and nowhere
    else."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    visible = visible_set(case.problem, call)  # (batch, q_heads, q_len, k_len)
    key = int(visible[0, 0].sum(0).argmax())  # the key that most rows of the first head see
    value = call.value.clone()
    value[0, 0, key, -1] = torch.nan
    group = visible.shape[1] // call.value.shape[1]
    reached = torch.zeros(kernel_shape(call), dtype=torch.bool)
    reached[0, :group, :, -1] = visible[0, :group, :, key]
    hidden = torch.zeros_like(reached)
    hidden[0, :group, :, -1] = ~visible[
        0, :group, :, key
    ]  # rows that do not see the key: rule mask.hidden-nan, no MUST
    wrong = (kernel(call.but(value=value)).output.isnan() != reached) & ~hidden
    if bool(wrong.any()):
        what = (
            f"NaN in the last column of value {key} must reach that column of the rows that see key {key}, and no more"
        )
        raise Violation("mask.visible-nan", what, (("pattern", describe(wrong, OUTPUT_AXES)),))


def kernel_shape(call: Call) -> tuple[int, int, int, int]:
    """The shape of a call's output."""
    return (*call.query.shape[:3], call.value.shape[3])


def same_bits(rule: str, what: str, before: torch.Tensor, after: torch.Tensor) -> None:
    """Raise Violation of the rule where two outputs differ in value; NaN equals NaN."""
    differs = (before != after) & ~(before.isnan() & after.isnan())
    if bool(differs.any()):
        at = tuple(int(i) for i in differs.nonzero()[0])
        first = f"output{list(at)} is {float(before[at]):.9g}, then {float(after[at]):.9g}"
        count = f"{int(differs.sum())} of {differs.numel()} elements: {describe(differs, OUTPUT_AXES)}"
        raise Violation(rule, what, (("first", first), ("pattern", count)))
