"""Laws: what must hold between two runs of the kernel, with no other truth at hand."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.judgement import OUTPUT_AXES, budget_of, visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.pattern import describe, ranges
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call

HIDDEN_KEY_FACTOR = 16.0  # the hidden scores stay finite in float32 for every problem of the catalogue


def hidden_keys_have_no_influence(kernel: Kernel, case: Case) -> None:
    """Other finite keys and values in slots that no row sees change no bit of the output."""
    need_same_bits(kernel)
    kernel.need(case.problem)
    call = make_call(case.problem)
    before = kernel(call).output
    after = kernel(with_other_hidden_keys(call, visible_set(case.problem, call))).output
    same_bits("mask.hidden-values", "other keys and values in hidden slots change the output", before, after)


def with_other_hidden_keys(call: Call, visible: torch.Tensor) -> Call:
    """Return the call with large keys and values of alternating sign where no row of any head sees the key."""
    return with_other_keys(call, ~keys_seen(call, visible))


def with_other_keys(call: Call, where: torch.Tensor) -> Call:
    """Return the call with large keys and values of alternating sign in some slots.

    where: bool, of a shape that broadcasts to (kv_batch, kv_heads, k_len, 1).
    """
    sign = 1 - 2 * (torch.arange(call.key.shape[2])[:, None] % 2)
    key = torch.where(where, sign * HIDDEN_KEY_FACTOR * (1 + call.key.abs()), call.key)
    value = torch.where(where, -sign * 1000.0, call.value)
    return call.but(key=key.to(call.key.dtype), value=value.to(call.value.dtype))


def unseen_keys_have_no_influence(kernel: Kernel, case: Case) -> None:
    """Other keys and values wherever one row sees none change no bit of the rows that see none of those keys."""
    problem = case.problem
    need_same_bits(kernel)
    kernel.need(problem)
    call = make_call(problem)
    visible = visible_set(problem, call)  # (batch, q_heads, q_len, k_len)
    row = problem.seed % max(problem.q_len, 1)
    changed = ~visible[:, :, row].any(0).any(0)  # (k_len,): keys that this row sees in no head of no batch element
    untouched = ~(visible & changed).any(-1)  # (batch, q_heads, q_len)
    other = with_other_keys(call, changed[:, None])
    before, after = (kernel(each).output[untouched] for each in (call, other))
    differs = (before != after) & ~(before.isnan() & after.isnan())
    if bool(differs.any()):
        rows = ranges(sorted(set(untouched.nonzero()[differs.any(-1)][:, 2].tolist())), problem.q_len)
        what = f"other keys and values at key {ranges(changed.nonzero().flatten().tolist(), problem.k_len)}"
        raise Violation("mask.hidden-values", f"{what} change rows {rows}, which see none of them")


def hidden_bias_has_no_influence(kernel: Kernel, case: Case) -> None:
    """A large finite bias in slots that the causal triangle hides changes no bit of the output."""
    need_same_bits(kernel)
    kernel.need(case.problem)
    call = make_call(case.problem)
    assert call.attn_mask is not None, "problems with an additive mask"
    mask = call.attn_mask.expand(*visible_set(case.problem, call).shape).clone()
    hidden = ~visible_set(case.problem, call.but(attn_mask=None))
    raised = mask.masked_fill(hidden, LARGE_BIAS)
    before, after = (kernel(call.but(attn_mask=each)).output for each in (mask, raised))
    same_bits("mask.bias-then-mask", "a bias in slots that the triangle hides changes the output", before, after)


LARGE_BIAS = 10000.0  # above every visible score, finite in float16


def hidden_nan_stays_out(kernel: Kernel, case: Case) -> None:
    """Where `contains_nan` is declared, NaN in keys and values that no row sees does not come through."""
    if not kernel.capabilities.contains_nan:
        raise NotSupported("contains_nan is not declared", declared=True)
    need_same_bits(kernel)
    kernel.need(case.problem)
    call = make_call(case.problem)
    hidden = ~keys_seen(call, visible_set(case.problem, call))
    poisoned = call.but(key=call.key.masked_fill(hidden, torch.nan), value=call.value.masked_fill(hidden, torch.nan))
    same_bits("mask.hidden-nan", "NaN in hidden slots comes through", kernel(call).output, kernel(poisoned).output)


def visible_nan_comes_through(kernel: Kernel, case: Case) -> None:
    """A NaN in one column of a value gives NaN in that column of every row that sees the key; one in a key, in those
    rows whole; one in a query, in its row whole; and nowhere else."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    budget_of(kernel, problem, call)  # scores in range, so that no weight is lost
    visible = visible_set(problem, call)  # (batch, q_heads, q_len, k_len)
    group = problem.q_heads // problem.kv_heads
    key = int(visible[0, 0].sum(0).argmax())  # the key that most rows of the first head see
    row = int(visible[0, 0].any(-1).nonzero()[0]) if bool(visible[0, 0].any()) else 0
    shared = slice(None) if problem.kv_batch < problem.batch else slice(0, 1)  # who reads the first element's keys
    sees = torch.zeros(kernel_shape(call), dtype=torch.bool)
    sees[shared, :group] = visible[shared, :group, :, key, None]
    blind = torch.zeros_like(sees)  # rows that do not see the key: rule mask.hidden-nan, no MUST
    blind[shared, :group] = ~visible[shared, :group, :, key, None]
    last_column = torch.zeros_like(sees)
    last_column[..., -1] = True
    own_row = torch.zeros_like(sees)
    own_row[0, 0, row] = bool(visible[0, 0, row].any())
    for name, at, reached in (
        ("value", (0, 0, key, -1), sees & last_column),
        ("key", (0, 0, key, 0), sees),
        ("query", (0, 0, row, 0), own_row),
    ):
        if problem.scale == 0 and name != "value":
            continue  # 0 * NaN: a matrix product with factor 0 need not read its operands
        tensor = getattr(call, name).clone()
        tensor[at] = torch.nan
        may_differ = torch.zeros_like(blind) if name == "query" else blind
        wrong = (kernel(call.but(**{name: tensor})).output.isnan() != reached) & ~may_differ
        if bool(wrong.any()):
            what = f"NaN in {name}{list(at)} must come through in the rows and columns it reaches, and in no others"
            raise Violation("mask.visible-nan", what, (("pattern", describe(wrong, OUTPUT_AXES)),))


def kernel_shape(call: Call) -> tuple[int, int, int, int]:
    """The shape of a call's output."""
    return (*call.query.shape[:3], call.value.shape[3])


def keys_seen(call: Call, visible: torch.Tensor) -> torch.Tensor:
    """Return which keys any row sees, bool (kv_batch, kv_heads, k_len, 1). visible: (batch, q_heads, q_len, k_len)."""
    kv_batch, kv_heads, k_len, _ = call.key.shape
    batch, q_heads = visible.shape[:2]
    seen = visible.any(2).reshape(batch, kv_heads, q_heads // kv_heads, k_len).any(2)  # (batch, kv_heads, k_len)
    return (seen.any(0, keepdim=True) if kv_batch == 1 else seen)[..., None]


def need_same_bits(kernel: Kernel) -> None:
    """Raise NotSupported for a kernel that may give other bits each time: two runs of it cannot be compared by bits."""
    if not kernel.capabilities.deterministic:
        raise NotSupported("deterministic is declared as false", declared=True)


def same_bits(rule: str, what: str, before: torch.Tensor, after: torch.Tensor) -> None:
    """Raise Violation of the rule where two outputs differ in value; NaN equals NaN."""
    differs = (before != after) & ~(before.isnan() & after.isnan())
    if bool(differs.any()):
        at = tuple(int(i) for i in differs.nonzero()[0])
        name = "output" if differs.ndim == 4 else "lse"
        first = f"{name}{list(at)} is {float(before[at]):.9g}, then {float(after[at]):.9g}"
        axes = OUTPUT_AXES[: differs.ndim]  # an lse has no columns
        count = f"{int(differs.sum())} of {differs.numel()} elements: {describe(differs, axes)}"
        raise Violation(rule, what, (("first", first), ("pattern", count)))
