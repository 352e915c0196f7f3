"""The contract: what a call must leave alone, whatever the numbers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.checks.laws import same_bits
from attnspec.conformance.checks.memory import gapped
from attnspec.conformance.judgement import judge_against_reference
from attnspec.conformance.kernel import Kernel, well_formed
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call
from attnspec.spec.problem import Problem

TENSORS = ("query", "key", "value", "attn_mask")


def inputs_stay_unchanged(kernel: Kernel, case: Case) -> None:
    """After the call every input has the bits it had before, and so has the storage around and between its elements."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    call = kernel.place(call.but(**{name: gapped(getattr(call, name)) for name in ("query", "key", "value")}))
    names = (*TENSORS, "key_lengths")
    given = {name: getattr(call, name) for name in names if getattr(call, name) is not None}
    before = {name: stored_bytes(tensor).clone() for name, tensor in given.items()}
    kernel(call)
    for name, tensor in given.items():
        if not torch.equal(stored_bytes(tensor), before[name]):
            raise Violation("contract.inputs-unchanged", f"the call changed {name}, or the storage around it")


def stored_bytes(x: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def global_settings_stay_as_they_were(kernel: Kernel, case: Case) -> None:
    """The call, and its backward pass where it has one, change no setting of torch and draw nothing from its
    generator."""
    kernel.need(case.problem)
    torch.rand(1)  # so that no seed is the state
    before = global_settings()
    try:
        kernel(make_call(case.problem))
        backward = case.problem.but(grad="output")
        if kernel.capabilities.lacks(backward) is None:
            with suppress(NotSupported, Violation):  # other checks tell
                kernel.gradients(make_call(backward))
        after = global_settings()
    finally:
        restore(before)
    changed = [name for name, value in before.items() if not same_setting(value, after[name])]
    if changed:
        raise Violation("contract.global-state", f"the call changes {' and '.join(changed)}")


def global_settings() -> dict[str, object]:
    """Return what a kernel has to leave as it was, by name."""
    return {
        "the default dtype": torch.get_default_dtype(),
        "the grad mode": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
        "the choice of deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the state of the global generator": torch.get_rng_state(),
    }


def restore(settings: dict[str, Any]) -> None:
    """Set everything as it was."""
    setters: dict[str, Callable[[Any], object]] = {
        "the default dtype": torch.set_default_dtype,
        "the grad mode": torch.set_grad_enabled,
        "the number of threads": torch.set_num_threads,
        "the choice of deterministic algorithms": torch.use_deterministic_algorithms,  # slow: it imports a compiler
        "the state of the global generator": torch.set_rng_state,
    }
    for name, value in global_settings().items():
        if not same_setting(value, settings[name]):
            setters[name](settings[name])


def same_setting(before: object, after: object) -> bool:
    """Whether a setting has its old value."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        return torch.equal(before, after)
    return before == after


def outputs_share_no_memory(kernel: Kernel, case: Case) -> None:
    """The results are memory of their own: overwriting the inputs, or calling again, leaves them as they were."""
    kernel.need(case.problem)
    for asked in {kernel.asking_for_lse(make_call(case.problem), case.problem).return_lse, False}:
        stays_its_own(kernel, case.problem, asked)


def stays_its_own(kernel: Kernel, problem: Problem, return_lse: bool) -> None:
    """Run a problem's call, and hold its results against what later calls and the caller do to other memory."""
    call = kernel.place(make_call(problem).but(return_lse=return_lse))
    results = [tensor for tensor in kernel.returned(call)[:2] if tensor is not None]
    if any(0 in tensor.stride() and tensor.numel() > 1 for tensor in results):
        raise Violation("contract.output-shape", "elements of the result share memory: it has a stride of 0")
    kept = [tensor.clone() for tensor in results]
    for later in (1, 2, 3):  # a kernel may use several buffers in turn
        other = make_call(problem.but(seed=problem.seed + later)).but(return_lse=return_lse)
        kernel(kernel.place(other))
    for before, after in zip(kept, results, strict=True):
        same_bits("contract.no-alias", "a later call overwrites an earlier result", before, after)
    for name in ("query", "key", "value"):
        getattr(call, name).zero_()
    for before, after in zip(kept, results, strict=True):
        same_bits("contract.no-alias", "the result changes when the caller overwrites the inputs", before, after)


def results_repeat_bit_for_bit(kernel: Kernel, case: Case) -> None:
    """The same call gives the same bits, also after another call."""
    if not kernel.capabilities.deterministic:
        raise NotSupported("deterministic is declared as false", declared=True)
    kernel.need(case.problem)
    call = kernel.asking_for_lse(make_call(case.problem), case.problem)
    first = [tensor.clone() for tensor in kernel(call)[:2] if tensor is not None]
    for between in (False, True):
        if between:
            other = case.problem.but(seed=case.problem.seed + 1)
            kernel(kernel.asking_for_lse(make_call(other), other))
        again = [tensor for tensor in kernel(call)[:2] if tensor is not None]
        for before, after in zip(first, again, strict=True):
            same_bits("contract.deterministic", "the same call gives other bits the second time", before, after)


def zero_lengths_give_zero_or_nothing(kernel: Kernel, case: Case) -> float:
    """No keys: output 0 and lse -inf. No queries, batch or heads: an empty output."""
    kernel.need(case.problem)
    if "empty" not in kernel.capabilities.features:
        raise NotSupported("empty (no queries or no keys) is not declared", declared=True)
    call = make_call(case.problem)
    return judge_against_reference(kernel, case.problem, call, kernel(call))


def batch_elements_keep_their_bits(kernel: Kernel, case: Case) -> None:
    """Where batch invariance is declared, each batch element has the same bits alone and at its place in the batch."""
    if not kernel.capabilities.batch_invariant:
        raise NotSupported("batch_invariant is not declared", declared=True)
    kernel.need(case.problem)
    call = make_call(case.problem)
    whole = kernel(call).output
    for b in range(case.problem.batch):
        mask = call.attn_mask
        if mask is not None and mask.ndim == 4 and mask.shape[0] > 1:
            mask = mask[b : b + 1]
        one = slice(b, b + 1) if case.problem.kv_batch > 1 else slice(None)
        alone = call.but(query=call.query[b : b + 1], key=call.key[one], value=call.value[one], attn_mask=mask)
        what = f"batch element {b} has other bits alone than in a batch of {case.problem.batch}"
        same_bits("contract.batch-invariant", what, whole[b : b + 1], kernel(alone).output)


def impossible_calls_are_refused(kernel: Kernel, case: Case) -> None:
    """A call whose shapes do not fit each other ends in an exception, and the next call is right."""
    kernel.need(case.problem)
    call = make_call(case.problem)
    right = kernel(call).output
    for rule, what, impossible, expanded in impossible_calls(call, kernel):
        try:
            answered = kernel.run(impossible.query, impossible.key, impossible.value, **kernel.options(impossible))
        except Exception:
            after = kernel(call).output
            if kernel.capabilities.deterministic:
                same_bits("contract.refusal", f"after a call with {what}, a right call gives other bits", right, after)
            continue
        if expanded is None:
            raise Violation(rule, f"a call with {what} was answered, not refused")
        if impossible.key.shape[2]:
            broadcast_rightly(kernel, case.problem, rule, what, answered, expanded)


def broadcast_rightly(kernel: Kernel, problem: Problem, rule: str, what: str, answered: object, expanded: Call) -> None:
    """Hold the answer to a call that NumPy would broadcast against the truth for the expanded tensors."""
    try:
        judge_against_reference(kernel, problem, expanded, well_formed(answered, expanded))
    except Violation as found:
        what = f"a call with {what} is neither refused nor broadcast: {found.what}"
        raise Violation(rule, what, found.details, found.error_over_budget) from None


def impossible_calls(call: Call, kernel: Kernel) -> Iterator[tuple[str, str, Call, Call | None]]:
    """Yield a rule, what is wrong in words, the call, and what it means to a kernel that broadcasts it, if anything."""
    k_len, heads = call.key.shape[2], call.query.shape[1]
    longer = torch.cat([call.value, call.value[:, :, :1]], 2)
    more_heads = torch.cat([call.value, call.value[:, :1]], 1)
    three = {name: torch.cat([getattr(call, name), getattr(call, name)[:1]]) for name in ("key", "value")}
    one_query, one_value = call.query[:1], call.value[:, :1]
    yield "notation.shapes", f"{k_len} keys and {k_len + 1} values", call.but(value=longer), None
    yield "notation.shapes", f"{k_len} keys and {k_len - 1} values", call.but(value=call.value[:, :, 1:]), None
    yield "notation.shapes", "a key of another head_dim than the query", call.but(key=call.key[..., 1:]), None
    yield "notation.shapes", "2 batch entries of queries and 3 of keys", call.but(**three), None
    broadcast = call.but(query=one_query.expand_as(call.query).contiguous())
    yield "notation.shapes", "1 batch entry of queries and 2 of keys", call.but(query=one_query), broadcast
    yield "grouped.heads-divide", f"{heads} key heads and {heads + 1} value heads", call.but(value=more_heads), None
    broadcast = call.but(value=one_value.expand_as(call.value).contiguous())
    yield "grouped.heads-divide", f"{heads} key heads and 1 value head", call.but(value=one_value), broadcast
    if "enable_gqa" in kernel.capabilities.features and heads > 2:
        two = call.but(key=call.key[:, :2], value=call.value[:, :2], enable_gqa=True)
        yield "grouped.heads-divide", f"{heads} query heads and 2 key heads", two, None
    if "attn_mask.bool" in kernel.capabilities.features:
        mask = torch.ones(call.query.shape[2], k_len - 1, dtype=torch.bool)
        yield "mask.broadcast", f"a mask of {k_len - 1} columns for {k_len} keys", call.but(attn_mask=mask), None
        mask = torch.ones(call.query.shape[2], k_len + 1, dtype=torch.bool)
        yield "mask.broadcast", f"a mask of {k_len + 1} columns for {k_len} keys", call.but(attn_mask=mask), None
    none = {name: getattr(call, name)[:, :, :0] for name in ("key", "value")}
    yield "attention.zero-length", "no keys", call.but(**none), call.but(**none)
