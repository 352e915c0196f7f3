"""Checks of key lengths, decoding and merging: each finds the fault that it is there for, and passes honest kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log

import pytest
import torch
from findings import findings
from mutants import mutant_named
from mutants.house import HONEST, kernel_of

from attnspec.conformance.catalogue import BY_NAME, cases
from attnspec.conformance.checks.lengths import asked, those, with_absent
from attnspec.conformance.checks.probes import broken_length_rule
from attnspec.conformance.checks.relations import merged, part_of_keys
from attnspec.conformance.judgement import scores_in_range, visible_set
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.reference.attention import answer
from attnspec.spec.call import Call, Result
from attnspec.spec.problem import Mask, Problem

pytestmark = pytest.mark.usefixtures("one_thread")
HONEST_NAMES = ("plain", "tiled", "each_alone", "split_kv", "packed", "lower_right")
VISIBLE, ABSENT, CAUSAL, ZERO = (f"key-lengths.{rule}" for rule in ("visible", "absent", "causal", "zero"))
APPEND, CHUNKS = "kv-cache.append", "kv-cache.chunks"
FOUND = [  # check, mutant, the rule that must be named
    ("visible_set_is_exact", "length-of-batch-0", VISIBLE),
    ("visible_set_is_exact", "lengths-sorted", VISIBLE),
    ("visible_set_is_exact", "length-in-8-bits", VISIBLE),
    ("visible_set_is_exact", "lengths-ignored-for-one-query", VISIBLE),
    ("visible_set_is_exact", "length-one-too-few", VISIBLE),
    ("visible_set_is_exact", "corner-at-the-end-of-the-storage", CAUSAL),
    ("visible_set_is_exact", "corner-upper-left-with-lengths", CAUSAL),
    ("visible_set_is_exact", "corner-lower-right-with-lengths", CAUSAL),
    ("visible_set_is_exact", "causal-dropped-with-lengths", CAUSAL),
    ("visible_set_is_exact", "zero-length-first-key", ZERO),
    ("visible_set_is_exact", "decode-ignores-the-mask", "mask.key-padding"),
    ("absent_keys_never_show", "absent-values-times-0", ABSENT),
    ("absent_keys_never_show", "absent-values-of-a-shared-cache-times-0", ABSENT),
    ("absent_keys_never_show", "absent-keys-plus-minus-inf", ABSENT),
    ("absent_keys_never_show", "absent-bias-plus-minus-inf", ABSENT),
    ("absent_keys_never_show", "absent-keys-in-the-maximum", ABSENT),
    ("absent_keys_never_show", "zero-length-lse-0", "softmax.lse-empty-row"),
    ("lengths_equal_shorter_keys", "mask-columns-from-the-end", VISIBLE),
    ("lengths_equal_shorter_keys", "length-rounded-up-to-16", VISIBLE),
    ("decoding_equals_prefill", "decode-misses-the-new-key", APPEND),
    ("decoding_equals_prefill", "decode-scales-by-the-value-dim", APPEND),
    ("decoding_equals_prefill", "decode-gives-the-lse-of-the-maximum", APPEND),
    ("decoding_equals_prefill", "length-of-batch-0", APPEND),
    ("decoding_equals_prefill", "chunk-sees-its-own-future", CHUNKS),
    ("decoding_equals_prefill", "chunk-as-if-it-were-the-first", CHUNKS),
    ("impossible_lengths_are_refused", "too-long-a-length-is-cut", "key-lengths.range"),
    ("impossible_lengths_are_refused", "a-negative-length-is-none", "key-lengths.range"),
    ("impossible_lengths_are_refused", "lengths-for-more-than-the-batch", "key-lengths.range"),
    ("impossible_lengths_are_refused", "lengths-in-floating-point", "key-lengths.range"),
    ("inputs_stay_unchanged", "lengths-counted-up-in-place", "contract.inputs-unchanged"),
    ("visible_nan_comes_through", "absent-slots-cleared-by-nan-to-num", "mask.visible-nan"),
    ("parts_merge_in_any_order", "part-that-is-empty-gives-nan", "flash.merge-empty"),
    ("parts_merge_in_any_order", "part-that-is-empty-has-a-share", "flash.merge-empty"),
    ("parts_merge_in_any_order", "parts-merged-by-their-mean", "flash.merge-associative"),
    ("parts_merge_in_any_order", "parts-merged-without-maximum", "flash.merge-gap"),
    ("parts_merge_in_any_order", "merge-against-the-first-part", "flash.merge-gap"),
    ("parts_merge_in_any_order", "lse-of-the-merge-is-the-larger", "flash.merge-associative"),
]
CHECKS = sorted({check for check, _, _ in FOUND})


def honest(name: str) -> Kernel:
    return resolve(f"{HONEST / f'lengths_{name}.py'}:attention")


def rules_named(kernel: Kernel, check: str) -> Iterator[str]:
    """Run a check's quick cases, of those on visible sets the ones with lengths, and yield the rules that fail."""
    every = check != "visible_set_is_exact"
    found = findings(kernel, lambda case: case.check == check and (every or case.problem.key_lengths))
    return (violation.rule for _, violation in found)


@pytest.mark.parametrize(("check", "mutant", "rule"), FOUND)
def test_the_check_finds_the_fault_and_names_its_rule(check: str, mutant: str, rule: str) -> None:
    assert rule in rules_named(kernel_of(mutant_named(mutant)), check)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", HONEST_NAMES)
def test_the_check_passes_an_honest_kernel(name: str, check: str) -> None:
    assert list(rules_named(honest(name), check)) == []


@pytest.mark.parametrize("name", HONEST_NAMES)
def test_what_an_honest_kernel_declares_is_run(name: str) -> None:
    """No case of decoding or merging is left out: a NaN beyond the length is no score."""
    kernel = honest(name)
    chosen = [case for case in cases("quick") if case.check in ("decoding_equals_prefill", "parts_merge_in_any_order")]
    worst = [run_case(kernel, case).error_over_budget for case in chosen]
    assert len(worst) >= 16
    assert all(error is not None and 0 <= error < 1 for error in worst)


@pytest.mark.parametrize("check", ["absent_keys_never_show", "absent_keys_reach_no_gradient"])
def test_every_case_of_absent_keys_holds_one(check: str) -> None:
    chosen = [case for case in cases("full") if case.check == check]
    assert {case.problem.kv_batch == 1 for case in chosen} == {True, False}
    for case in chosen:
        assert with_absent(make_call(case.problem), torch.nan).key.isnan().any(), case.id


def test_a_kernel_that_is_not_deterministic_may_change_bits_but_not_leak() -> None:
    leaking = kernel_of(mutant_named("absent-values-times-0"))
    declared = replace(leaking, capabilities=replace(leaking.capabilities, deterministic=False))
    assert set(rules_named(declared, "absent_keys_never_show")) == {ABSENT}


@pytest.mark.parametrize("name", HONEST_NAMES)
@pytest.mark.parametrize("wrong", [[5, 10], [-1, 3], [3], [3, 4, 5], [3.0, 4.0]])
def test_honest_kernels_refuse_impossible_lengths(name: str, wrong: list[float]) -> None:
    x = torch.ones(2, 1, 9, 4)
    lengths = torch.tensor(wrong) if isinstance(wrong[0], float) else torch.tensor(wrong, dtype=torch.int32)
    with pytest.raises(ValueError, match="length"):
        honest(name).run(x, x, x, key_lengths=lengths)


@pytest.mark.parametrize("name", HONEST_NAMES)
def test_honest_kernels_give_the_mean_of_the_keys_that_exist(name: str) -> None:
    """With equal scores the output is the mean of the values 1, 2, ...; its lse is the log of their number."""
    query = torch.zeros(4, 1, 2, 4)
    value = torch.arange(1.0, 41.0)[None, None, :, None].expand(4, 1, 40, 4).clone()
    lengths = torch.tensor([33, 1, 0, 40], dtype=torch.int32)
    for b, length in enumerate(lengths.tolist()):
        value[b, :, length:] = torch.nan
    key = value.masked_fill(~value.isnan(), 1.0)
    output, lse = honest(name).run(query, key, value, key_lengths=lengths, return_lse=True)
    assert output[:, 0].flatten().tolist() == pytest.approx([17.0] * 8 + [1.0] * 8 + [0.0] * 8 + [20.5] * 8)
    assert lse[:, 0, 0].tolist() == pytest.approx([log(33), 0.0, -torch.inf, log(40)])


def seen(text: str) -> torch.Tensor:
    """Rows of 0 and 1, batch elements apart by a bar: (batch, 1, rows, keys)."""
    return torch.tensor([[[[c == "1" for c in row] for row in b.split()]] for b in text.split("|")])


SQUARE = Problem(q_len=2, k_len=4, head_dim=2, batch=3, key_lengths="zero", seed=1)  # of 0, 3 and 4 keys


@pytest.mark.parametrize(
    ("causal", "read", "rule"),
    [
        (None, "1000 1000|1110 1110|1111 1111", ZERO),
        (None, "0000 0000|1111 1111|1111 1111", VISIBLE),
        (None, "0000 0000|1100 1100|1111 1111", VISIBLE),
        (None, "0000 0000|1110 1110|1111 1110", VISIBLE),
        ("upper_left", "0000 0000|1000 1110|1000 1100", CAUSAL),
        ("upper_left", "0000 0000|1000 1000|1000 1100", VISIBLE),
        ("upper_left", "0000 0000|0000 1100|1000 1100", CAUSAL),
        ("lower_right", "0000 0000|1100 1111|1110 1111", VISIBLE),
        ("lower_right", "0000 0000|1110 1110|1110 1111", CAUSAL),
        ("lower_right", "0000 0000|1000 1100|1110 1111", CAUSAL),
    ],
)
def test_a_wrong_visible_set_names_its_rule(causal: str | None, read: str, rule: str) -> None:
    problem = SQUARE.but(causal=causal)
    call = make_call(problem).but(key_lengths=torch.tensor([0, 3, 4], dtype=torch.int32))
    assert broken_length_rule(problem, call, seen(read)) == rule


def test_a_dropped_mask_is_not_blamed_on_the_lengths() -> None:
    problem = SQUARE.but(mask=Mask("bool", "qk", "random"))
    keep = torch.tensor([[True, False, True, True], [True, True, False, True]])
    call = make_call(problem).but(key_lengths=torch.tensor([0, 3, 4], dtype=torch.int32), attn_mask=keep)
    assert broken_length_rule(problem, call, visible_set(problem, call.but(attn_mask=None))) is None


def test_what_does_not_exist_is_overwritten_and_nothing_else() -> None:
    problem = Problem(q_len=2, k_len=5, head_dim=4, batch=3, mask=Mask("float", "bhqk", "bias"), key_lengths="ragged")
    call = make_call(problem).but(key_lengths=torch.tensor([2, 0, 5], dtype=torch.int32))
    poisoned = with_absent(call, torch.nan)
    absent = seen("00111|11111|00000")  # (batch, 1, 1, k_len)
    assert poisoned.attn_mask is not None
    assert torch.equal(poisoned.attn_mask.isnan(), absent.expand(3, 1, 2, 5))
    for name in ("key", "value"):
        was, now = getattr(call, name), getattr(poisoned, name)
        assert torch.equal(now.isnan(), absent.transpose(-1, -2).expand(3, 1, 5, 4))
        assert torch.equal(now[~now.isnan()], was[~now.isnan()])


def test_a_shared_cache_is_overwritten_only_where_nobody_reads() -> None:
    problem = Problem(q_len=2, k_len=5, head_dim=4, batch=2, kv_batch=1, key_lengths="ragged")
    call = make_call(problem).but(key_lengths=torch.tensor([2, 4], dtype=torch.int32))
    assert with_absent(call, torch.inf).key[0, 0, :, 0].isinf().tolist() == [False, False, False, False, True]


def test_a_decode_step_ends_at_its_own_row() -> None:
    prefill = make_call(Problem(q_len=6, k_len=6, head_dim=4, batch=2, causal="upper_left", seed=1))
    step = asked(prefill, [1, 4], 2)
    assert step.key_lengths is not None
    assert step.key_lengths.tolist() == [3, 6]
    assert torch.equal(step.query[0], prefill.query[0, :, 1:3])
    assert torch.equal(step.query[1], prefill.query[1, :, 4:6])
    assert step.key.isnan()[:, 0, :, 0].tolist() == [[False] * 3 + [True] * 3, [False] * 6]


def test_a_decode_step_is_the_rows_of_the_prefill() -> None:
    """In the reference: what the check asks of a kernel holds for the documented math."""
    prefill = make_call(Problem(q_len=6, k_len=6, head_dim=4, batch=2, causal="upper_left", seed=1))
    whole, step = answer(prefill, "lower_right"), answer(asked(prefill, [1, 4], 2), "lower_right")
    torch.testing.assert_close(step.output, those(whole.output, [1, 4], 2), rtol=0, atol=1e-14)


def test_what_stands_beyond_a_length_is_no_score() -> None:
    call = make_call(Problem(q_len=2, k_len=5, head_dim=4, batch=2, key_lengths="ragged"))
    call = call.but(key_lengths=torch.tensor([2, 5], dtype=torch.int32))
    assert scores_in_range(with_absent(call, torch.nan), "fused")
    call.key[0, 0, 1] = torch.nan
    assert not scores_in_range(call, "fused")


class TwoParts:
    """A kernel of known results: values 1 with lse 0 for the first part, 3 with lse log 3 for the second."""

    def __call__(self, call: Call) -> Result:
        first = bool((call.value == 1).all())
        shape = (*call.query.shape[:3], call.value.shape[3])
        return Result(torch.full(shape, 1.0 if first else 3.0), torch.full(shape[:3], 0.0 if first else log(3)))


def test_parts_are_merged_by_their_shares() -> None:
    """Shares 1/4 and 3/4: 1/4 * 1 + 3/4 * 3 = 2.5, lse log 4."""
    problem = Problem(q_len=1, k_len=4, head_dim=4)
    call = make_call(problem)
    value = torch.tensor([1.0, 3.0, 3.0, 3.0])[None, None, :, None].expand(1, 1, 4, 4)
    call = call.but(query=torch.zeros(1, 1, 1, 4), value=value, return_lse=True)
    known = replace(resolve("reference"), run=lambda query, key, value, **options: TwoParts()(Call(query, key, value)))
    pieces = [part_of_keys(call, keys) for keys in (slice(0, 1), slice(1, None))]
    truth, margin = merged(known, problem, pieces)
    assert truth.output.flatten().tolist() == pytest.approx([2.5] * 4)
    assert truth.lse is not None
    assert exp(float(truth.lse)) == pytest.approx(4.0)
    assert bool((margin.output > 0).all())
    assert float(margin.output.max()) < 1e-5


def test_the_catalogue_cites_the_rules_of_merging_and_of_the_cache() -> None:
    assert {"flash.merge-associative", "flash.merge-empty", "flash.merge-gap"} <= set(
        BY_NAME["parts_merge_in_any_order"].rules
    )
    assert {APPEND, CHUNKS} <= set(BY_NAME["decoding_equals_prefill"].rules)
