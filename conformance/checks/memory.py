"""Memory: how inputs lie in it and what it held before must not show in the result."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.judgement import judge_against_reference
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call

TENSORS = ("query", "key", "value")
FAR = 2**31 + 2**12  # elements between the two batch entries: beyond what 32 bits with a sign can count


def dirty_memory_does_not_show(kernel: Kernel, case: Case) -> float:
    """Run after blocks of the output's size were filled with NaN and freed, the result is right."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    batch, heads, q_len, _ = call.query.shape
    for width in (call.value.shape[3], call.query.shape[3], call.key.shape[2], 1):
        blocks = [
            torch.full((batch, heads, q_len, width), torch.nan, dtype=d) for d in (call.query.dtype, torch.float32)
        ]
        del blocks
    return judge_against_reference(kernel, case.problem, call, kernel(call))


def new_content_of_old_memory_is_seen(kernel: Kernel, case: Case) -> float:
    """Called again with the same tensors, their content changed in place, the kernel gives the result of the new
    content."""
    kernel.need(case.problem)
    call = kernel.place(make_call(case.problem))
    kernel(call)
    other = make_call(case.problem.but(seed=case.problem.seed + 7))
    for name in TENSORS:
        getattr(call, name).copy_(getattr(other, name))
    other = other.but(attn_mask=call.attn_mask if call.attn_mask is None else call.attn_mask.cpu())
    return blaming("with new content in the same tensors", kernel, case, call, other)


def storage_layout_does_not_matter(kernel: Kernel, case: Case) -> float:
    """Views of (batch, length, heads, dim) and (heads, batch, length, dim) storage, gapped storage and plain storage,
    each tensor another, give the exact output within the budget."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    worst = 0.0
    for turn in range(len(LAYOUTS)):
        layouts = {name: LAYOUTS[(turn + i) % len(LAYOUTS)] for i, name in enumerate(TENSORS)}
        placed = call.but(**{name: layout(getattr(call, name)) for name, layout in layouts.items()})
        how = "with " + ", ".join(f"{name} {layout.__name__}" for name, layout in layouts.items())
        worst = max(worst, blaming(how, kernel, case, placed, call))
    return worst


def blaming(how: str, kernel: Kernel, case: Case, placed: Call, plain: Call) -> float:
    """Judge a call against the reference on the same content in plain memory, and blame how it lies in memory.

    Where the plain call is wrong too, that is the finding.
    """
    try:
        return judge_against_reference(kernel, case.problem, plain, kernel(placed))
    except Violation as found:
        fresh = plain.but(**{name: getattr(plain, name).clone() for name in TENSORS})
        judge_against_reference(kernel, case.problem, plain, kernel(fresh))
        what = f"{found.what}, {how}"
        raise Violation("contract.layouts", what, found.details, found.error_over_budget) from None


def plain_storage(x: torch.Tensor) -> torch.Tensor:
    """The same values in plain storage."""
    return x.contiguous()


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


LAYOUTS = (length_first, gapped, heads_first, plain_storage)


def expanded_storage_does_not_matter(kernel: Kernel, case: Case) -> float:
    """One head of keys and values expanded over the heads (stride 0), and every other column of a wider storage (a last
    stride of 2), give the result of the same values in plain storage; or are refused."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    expanded = {name: getattr(call, name)[:, :1].expand_as(getattr(call, name)) for name in ("key", "value")}
    spread = {name: every_other_column(getattr(call, name)) for name in TENSORS}
    worst, refusals = 0.0, []
    for how, views in (("key and value expanded over the heads", expanded), ("a last stride of 2", spread)):
        placed = call.but(**views)
        try:
            kernel(placed)
        except (NotSupported, Violation) as refusal:
            if isinstance(refusal, NotSupported) or refusal.rule == "contract.declared-runs":
                refusals.append(refusal)
                continue
        worst = max(worst, blaming(f"with {how}", kernel, case, placed, call.but(**copied(views))))
    if len(refusals) == 2:
        raise NotSupported(f"expanded storage is refused: {refusals[0]}", declared=True)
    return worst


def every_other_column(x: torch.Tensor) -> torch.Tensor:
    """The same values in storage twice as wide, NaN between them."""
    room = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype)
    room[..., ::2] = x
    return room[..., ::2]


def copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors, each in memory of its own."""
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def offsets_beyond_31_bits_are_reached(kernel: Kernel, case: Case) -> float:
    """Batch entries more than 2^31 elements apart, in memory that is reserved and hardly touched, are read right."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    try:
        views = {name: far_apart(getattr(call, name)) for name in TENSORS}
    except (RuntimeError, MemoryError):
        raise NotSupported("this machine has no address space for it", declared=True) from None
    return blaming("with batch entries 2^31 elements apart", kernel, case, call.but(**views), call)


def far_apart(x: torch.Tensor) -> torch.Tensor:
    """The same values, batch entries `FAR` elements apart."""
    size = x[0].numel()
    room = torch.empty(FAR * (x.shape[0] - 1) + size, dtype=x.dtype)
    view = room.as_strided(x.shape, (FAR, *x[0].contiguous().stride()))
    return view.copy_(x)
