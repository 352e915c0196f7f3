"""Probes: inputs under which the output names what the kernel read. Decoded, then compared exactly."""

from __future__ import annotations

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.checks.laws import kernel_shape
from attnspec.conformance.judgement import budget_of, empty_rows, judge_against_reference, visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.pattern import describe, ranges
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call
from attnspec.spec.exercised import rules_exercised
from attnspec.spec.problem import CAUSAL_ALIGNMENTS, FINITE_CONTENTS, Problem
from attnspec.spec.window import Window

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
    if problem.softcap:
        return "softcap.bias"  # with Q = 0 a cap does nothing, but to what is hidden before it
    if problem.window and (rule := broken_window_rule(problem, call, read)):
        return rule
    if problem.key_lengths and (rule := broken_length_rule(problem, call, read)):
        return rule
    if not bool(((read != expected) & expected.any(-1, keepdim=True)).any()):
        return "mask.fully-masked-row"
    if problem.mask and problem.mask.content in FINITE_CONTENTS:
        return "mask.finite-bias"
    triangle, mask = (
        visible_set(problem, call.but(**dropped)) for dropped in ({"attn_mask": None}, {"is_causal": False})
    )
    if call.is_causal and call.attn_mask is not None and any(torch.equal(read, alone) for alone in (triangle, mask)):
        return "mask.combine"
    exercised = rules_exercised(problem)
    if call.is_causal and (call.attn_mask is None or bool((read & ~triangle).any())):
        return next(rule for rule in exercised if rule.startswith("mask.causal"))
    return next((rule for rule in exercised if rule in MASK_RULES), "attention.output")


def broken_window_rule(problem: Problem, call: Call, read: torch.Tensor) -> str | None:
    """Return the id of the rule that a wrong visible set with a window breaks; None where lengths or mask alone do.

    Wrong in empty rows alone: the empty row's. Keys are seen that the triangle hides: `window.causal`; that the mask
    hides: `window.combine`. What was read is right at the other corner, or at the end of the storage: `window.corner`.
    """
    expected, bare = visible_set(problem, call), call.but(attn_mask=None, window_size=None)
    if bool((read & ~visible_set(problem, bare.but(is_causal=False))).any()):
        return None  # keys that do not exist
    if not bool(((read != expected) & expected.any(-1, keepdim=True)).any()):
        return "mask.fully-masked-row"
    if call.is_causal and bool((read & ~visible_set(problem, bare)).any()):
        return "window.causal"
    if call.attn_mask is not None and bool((read & ~visible_set(problem, call.but(window_size=None))).any()):
        return "window.combine"
    other = problem.but(causal=None, window=Window(0, 0, next(c for c in CAUSAL_ALIGNMENTS if c != problem.corner)))
    stored = visible_set(problem, call.but(key_lengths=None)) & visible_set(problem, bare.but(is_causal=False))
    if any(torch.equal(read, elsewhere) for elsewhere in (visible_set(other, call), stored)):
        return "window.corner"
    return "window.bounds"


def broken_length_rule(problem: Problem, call: Call, read: torch.Tensor) -> str | None:
    """Return the id of the rule on key lengths that a wrong visible set breaks; None where a mask is at fault.

    Wrong in batch elements without keys alone: `key-lengths.zero`. Keys are seen that do not exist: `-visible`; that
    exist, beyond the triangle: `-causal`. Keys are missing: with the corner at the upper left, a length that is too
    short takes them from every row that would see them, a wrong diagonal does not; at the lower right the two look
    alike, and the calls that are not causal tell them apart.
    """
    expected = visible_set(problem, call)
    exists = visible_set(problem, call.but(attn_mask=None, is_causal=False))
    triangle = visible_set(problem, call.but(attn_mask=None))
    wrong = read != expected  # (batch, q_heads, q_len, k_len)
    if not bool((wrong & exists.any(-1, keepdim=True)).any()):
        return "key-lengths.zero"
    if bool((read & ~exists).any()):
        return "key-lengths.visible"
    if bool((read & ~triangle).any()):
        return "key-lengths.causal"
    if bool((read & ~expected).any()):
        return None
    lost = wrong.any(-2, keepdim=True)  # (batch, q_heads, 1, k_len)
    lost_by_every_row = torch.equal(read, expected & ~lost)
    if problem.causal is None or (problem.causal == "upper_left" and lost_by_every_row):
        return "key-lengths.visible"
    return "key-lengths.causal"


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


def gradients_read_the_visible_set(kernel: Kernel, case: Case) -> None:
    """With Q = 0 and a grad_output of one row, the nonzero gradients of V are the keys that the row sees: exactly the
    visible set, of all query heads of a group together."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    group = problem.q_heads // problem.kv_heads
    read = rows_read_back(kernel, call) != 0  # NaN counts as read
    shape = (problem.batch, problem.kv_heads, group, problem.q_len, problem.k_len)
    expected = visible_set(problem, call).reshape(shape).any(2)
    if problem.kv_batch == 1:
        expected = expected.any(0, keepdim=True)
    wrong = read != expected
    if bool(wrong.any()):
        what = f"in the backward pass, {row_in_words(read, expected, wrong)}"
        raise Violation("backward.matches-forward", what, (("pattern", share(wrong)),))


def rows_read_back(kernel: Kernel, call: Call) -> torch.Tensor:
    """Return the weight with which each row's grad_output reaches each value under Q = 0, summed over the query heads
    of a group: (kv_batch, kv_heads, q_len, k_len).

    A call hands over value_dim rows, each in a column of its own.
    """
    q_len, width = call.query.shape[2], call.value.shape[3]
    read = []
    for start in range(0, q_len, width):
        flow = torch.zeros(kernel_shape(call), dtype=call.query.dtype)
        for column in range(min(width, q_len - start)):
            flow[:, :, start + column, column] = 1
        probe = call.but(query=torch.zeros_like(call.query), grad_output=flow)
        read.append(kernel.gradients(probe)[1].value[..., : q_len - start].mT.clone())
    return torch.cat(read, dim=2)


def row_in_words(read: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """Say of the first wrong row which keys it sees and which it should see."""
    batch, head, row, _ = (int(i) for i in wrong.nonzero()[0])
    k_len = wrong.shape[-1]
    sees, should = (keys_in_words(t[batch, head, row], k_len) for t in (read, expected))
    return f"batch {batch}, head {head}, row {row} sees {sees}; it should see {should}"


def keys_in_words(seen: torch.Tensor, k_len: int) -> str:
    """Which keys a row sees."""
    keys = seen.nonzero().flatten().tolist()
    return f"keys {ranges(keys, k_len)}" if keys else "no key"


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
    if problem.kv_heads > 256:
        raise NotSupported("more than 256 key heads cannot be told apart in every dtype", declared=True)
    budget_of(kernel, problem, call)  # scores in range
    heads = torch.arange(problem.kv_heads, dtype=call.value.dtype)  # small integers, exact in every dtype
    value = (heads[None, :, None, None]).expand_as(call.value).contiguous()
    output = kernel(call.but(value=value)).output
    group = problem.q_heads // problem.kv_heads
    expected = torch.arange(problem.q_heads) // group
    read = output.double().round()  # the weights sum to 1 within far less than one half
    wrong = (read != expected[None, :, None, None]) & ~empty_rows(problem, call)[..., None]
    if bool(wrong.any()):
        got = [int(x) if x == x else "NaN" for x in read[0, :, 0, 0].tolist()]
        what = f"query heads 0 to {problem.q_heads - 1} read key heads {got}; they should read {expected.tolist()}"
        rule = "grouped.multi-query" if problem.kv_heads == 1 else "grouped.head-map"
        raise Violation(rule, what, (("pattern", describe(wrong, ("batch", "head", "row", "column"))),))


def each_row_reads_the_key_it_asks_for(kernel: Kernel, case: Case) -> None:
    """Each row asks, by a score far above all others, for one visible key; the value that comes back names batch, head
    and key."""
    problem = case.problem
    kernel.need(problem)
    call = make_call(problem)
    visible = visible_set(problem, call)  # (batch, q_heads, q_len, k_len)
    _, heads, q_len, k_len = visible.shape
    asked = (torch.arange(q_len)[:, None] * 7 + torch.arange(k_len)).remainder(k_len)  # a different start each row
    preference = torch.where(visible, asked, -1)
    wanted = preference.argmax(-1)  # (batch, q_heads, q_len)
    group = heads // problem.kv_heads
    key, value = torch.sign(call.key) + (call.key == 0), name_tags(call.value)  # keys of +-1
    if any(len(keys.unique(dim=0)) < k_len for keys in key.flatten(0, 1)):
        raise NotSupported("two of the keys drawn are the same: no row can ask for one of them", declared=True)
    own, expected = (of_wanted(x.expand(problem.batch, -1, -1, -1), wanted, group) for x in (key, value))
    output = kernel(call.but(query=own * ASKING, key=key, value=value)).output
    read = output.double().round()
    wrong = (read != expected) & visible.any(-1)[..., None]
    if bool(wrong.any()):
        b, h, row = (int(i) for i in wrong.any(-1).nonzero()[0])
        got, should = (tag_in_words(t[b, h, row]) for t in (read, expected))
        what = f"batch {b}, head {h}, row {row} reads {got}; it asks for {should}"
        pattern = describe(wrong.any(-1), ("batch", "head", "row"))
        raise Violation("notation.layout", what, (("pattern", pattern),))


ASKING = 4.0  # 64 features of +-1: the key asked for scores 32 at the default scale, the others stay far below


def of_wanted(x: torch.Tensor, wanted: torch.Tensor, group: int) -> torch.Tensor:
    """Return for each row the vector of the key that it asks for: (batch, q_heads, q_len, dim)."""
    return x.repeat_interleave(group, dim=1).gather(2, wanted[..., None].expand(-1, -1, -1, x.shape[-1]))


def name_tags(value: torch.Tensor) -> torch.Tensor:
    """Return values that name their batch entry, head and key in the first columns: small integers, exact in every
    dtype."""
    batch, heads, k_len, width = value.shape
    b, h, j = torch.meshgrid(torch.arange(batch), torch.arange(heads), torch.arange(k_len), indexing="ij")
    columns = [b, h, j % 100, j // 100] + [j % 10] * max(0, width - 4)
    return torch.stack(columns[:width], -1).to(value.dtype)


def tag_in_words(tag: torch.Tensor) -> str:
    """Say what the first columns of a value name."""
    if not bool(tag.isfinite().all()):
        return "NaN"
    b, h, low, high = (int(x) for x in tag[:4])
    return f"key {100 * high + low} of batch {b}, head {h}"


def every_feature_of_a_key_counts(kernel: Kernel, case: Case) -> None:
    """Key j is the unit vector of feature j and row i asks for feature i: the value that comes back names the
    feature."""
    problem = case.problem  # q_len = k_len = head_dim
    kernel.need(problem)
    call = make_call(problem)
    size = problem.head_dim
    unit = torch.eye(size, dtype=call.key.dtype)
    asking = FEATURE_SCORE * size**0.5
    query, key = (x.expand(problem.batch, problem.q_heads, size, size).contiguous() for x in (asking * unit, unit))
    value = (torch.arange(size) % 2).to(unit.dtype)[:, None].expand(problem.batch, problem.q_heads, size, size) * 1.0
    value = value.contiguous()
    output = kernel(call.but(query=query, key=key, value=value)).output
    wrong = (output.double() - value.double()).abs() > 0.25
    if bool(wrong.any()):
        features = ranges(sorted(set(wrong.nonzero()[:, 2].tolist())), size)
        what = f"with head_dim {size}, rows that ask for feature {features} do not get the key that has it"
        raise Violation("attention.output", what)


FEATURE_SCORE = 16.0  # exp(16) is far above 4 * 256 keys


def weights_add_up_to_one(kernel: Kernel, case: Case) -> float:
    """With V = 1 every row that sees a key gives 1, within the budget."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    call = call.but(value=torch.ones_like(call.value))
    try:
        return judge_against_reference(kernel, case.problem, call, kernel(call))
    except Violation as found:
        if found.rule != "accuracy.output-within-budget":
            raise
        what = f"the weights do not add up to 1: {found.what}"
        raise Violation("softmax.weights", what, found.details, found.error_over_budget) from None
