"""Key lengths: keys that do not exist never show, and decoding step by step gives what one call gives."""

from __future__ import annotations

from functools import partial
from operator import itemgetter

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.checks.laws import same_bits
from attnspec.conformance.checks.relations import same
from attnspec.conformance.judgement import judge_against_reference, need_refusals
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import Violation
from attnspec.golden.inputs import make_call
from attnspec.reference import lengths
from attnspec.spec.call import Call, Result

POISONS = (torch.nan, torch.inf, 30000.0)  # the last is finite in every dtype, and above every score and value


def absent_keys_never_show(kernel: Kernel, case: Case) -> float:
    """NaN, infinities and large numbers in the memory of keys that do not exist leave the result right, and every bit
    of it as it was where the kernel is deterministic."""
    kernel.need(case.problem)
    call = kernel.asking_for_lse(make_call(case.problem), case.problem)
    before = [x.clone() for x in kernel(call)[:2] if x is not None]
    worst = judge_against_reference(kernel, case.problem, call, Result(*before))
    for poison in POISONS:
        after = kernel(with_absent(call, poison))
        what = f"{poison:g} in keys, values and bias that do not exist comes through"
        if kernel.capabilities.deterministic:
            for old, new in zip(before, after[:2], strict=False):
                assert new is not None, "asked for as before"
                same_bits("key-lengths.absent", what, old, new)
        try:
            worst = max(worst, judge_against_reference(kernel, case.problem, call, after))
        except Violation as found:
            what = f"{what}: {found.what}"
            raise Violation("key-lengths.absent", what, found.details, found.error_over_budget) from None
    return worst


def with_absent(call: Call, number: float) -> Call:
    """Return the call with a number in every key, value and bias that does not exist in any batch element that reads
    it."""
    assert call.key_lengths is not None, "a problem with key_lengths"
    exists = lengths.existing(call.query.shape[0], call.key.shape[2], call.key_lengths)  # (batch, k_len)
    stored = exists if call.key.shape[0] > 1 else exists.any(0, keepdim=True)
    key, value = (x.masked_fill(~stored[:, None, :, None], number) for x in (call.key, call.value))
    mask = call.attn_mask
    if mask is not None and mask.dtype.is_floating_point and mask.ndim == 4 and mask.shape[3] == call.key.shape[2]:
        read = exists if mask.shape[0] > 1 else exists.any(0, keepdim=True)
        mask = mask.masked_fill(~read[:, None, None, :], number)
    return call.but(key=key, value=value, attn_mask=mask)


def lengths_equal_shorter_keys(kernel: Kernel, case: Case) -> float:
    """Each element of a batch, its keys cut to those that exist and asked for alone, gives the same output and lse."""
    problem = case.problem
    kernel.need(problem)
    kernel.need(problem.but(key_lengths=None))
    call = kernel.asking_for_lse(make_call(problem), problem)
    assert call.key_lengths is not None, "a problem with key_lengths"
    worst = 0.0
    for how, key_lengths in (
        ("in int64", call.key_lengths.long()),
        ("in every other place of their memory", call.key_lengths.repeat_interleave(2)[::2]),
    ):
        placed = call.but(key_lengths=key_lengths)
        worst = max(worst, same(kernel, problem, "key-lengths.visible", f"with lengths {how}", call, placed))
    for b, length in enumerate(call.key_lengths.tolist()):
        if length == 0:
            continue
        mask = call.attn_mask
        if mask is not None and mask.ndim == 4 and mask.shape[0] > 1:
            mask = mask[b : b + 1]
        if mask is not None and mask.shape[-1] == problem.k_len:
            mask = mask[..., :length]
        own = slice(b, b + 1) if problem.kv_batch > 1 else slice(0, 1)
        key, value = (x[own, :, :length] for x in (call.key, call.value))
        alone = call.but(query=call.query[b : b + 1], key=key, value=value, attn_mask=mask, key_lengths=None)
        how, at = f"batch element {b} with its {length} keys alone", (slice(b, b + 1),)
        worst = max(worst, same(kernel, problem, "key-lengths.visible", how, call, alone, itemgetter(at)))
    return worst


def decoding_equals_prefill(kernel: Kernel, case: Case) -> float:
    """Rows asked for one at a time, and in chunks, each batch element at another row and against a cache that holds no
    more than its keys, give output and lse of one causal call over the whole sequence."""
    corner = kernel.capabilities.causal_alignment
    problem = case.problem.but(causal=corner)  # q_len = k_len: both corners are the same
    kernel.need(problem)
    kernel.need(problem.but(causal=None, key_lengths="ragged"))
    prefill = kernel.asking_for_lse(make_call(problem), problem)
    chunk = max(2, problem.q_len // 3)
    steps = [("kv-cache.append", 1, row) for row in sorted({0, 1, problem.q_len // 2, problem.q_len - 1})]
    chunks = [("kv-cache.chunks", chunk, row) for row in range(0, problem.q_len - chunk + 1, chunk)]
    worst = 0.0
    for rule, count, first in steps + (chunks if corner == "lower_right" else []):
        rows = [(first + b * count) % (problem.q_len - count + 1) for b in range(problem.batch)]
        call = asked(prefill, rows, count).but(is_causal=corner == "lower_right")
        how = f"{count} rows from {rows} on, a number for each batch element, against their caches"
        worst = max(worst, same(kernel, problem, rule, how, prefill, call, partial(those, rows=rows, count=count)))
    return worst


def asked(prefill: Call, rows: list[int], count: int) -> Call:
    """Return the call of some rows, as many from rows[b] on in batch element b, against a cache that ends at the last
    of them: what lies beyond is NaN."""
    ends = torch.tensor(rows, dtype=torch.int32) + count  # (batch,)
    cached = prefill.but(query=those(prefill.query, rows, count), key_lengths=ends)
    return with_absent(cached, torch.nan)


def those(x: torch.Tensor, rows: list[int], count: int) -> torch.Tensor:
    """Return the rows of each batch element that are asked for. x: (batch, q_heads, q_len, ...)."""
    return torch.stack([x[b, :, row : row + count] for b, row in enumerate(rows)])


def impossible_lengths_are_refused(kernel: Kernel, case: Case) -> None:
    """A length below 0 or beyond the keys, and lengths of another shape, end in an exception."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    batch, k_len = call.query.shape[0], call.key.shape[2]
    wrong = {
        "a length of k_len + 1": torch.full((batch,), k_len + 1, dtype=torch.int32),
        "a length of -1": torch.full((batch,), -1, dtype=torch.int32),
        "one length too many": torch.full((batch + 1,), k_len, dtype=torch.int32),
        "lengths in float32": torch.full((batch,), float(k_len)),
    }
    for place in (0, batch - 1):
        for length in (k_len + 1, -1):
            one = torch.full((batch,), k_len, dtype=torch.int32)
            one[place] = length
            wrong[f"a length of {length} in place {place}"] = one
    wrong["one length too few"] = torch.full((batch - 1,), k_len, dtype=torch.int32)
    wrong["lengths of two dimensions"] = torch.full((batch, 1), k_len, dtype=torch.int32)
    need_refusals(kernel, "key-lengths.range", ((what, call.but(key_lengths=x)) for what, x in wrong.items()))
