"""Gradients over pages: by hand, by autograd and by the exact oracle; what the readers of a slot give is added up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import FORMS
from attnspec.conformance.forms.paged import Parts, in_use
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.golden.forms.paged import LEAVES, PagedProblem
from attnspec.golden.store import load_form
from attnspec.reference.exact.backward import backward as exact_backward
from attnspec.reference.paged import (
    in_order,
    into_pages,
    packed_paged_attention,
    packed_paged_backward,
    paged_attention,
    paged_backward,
)
from attnspec.spec.call import Call
from attnspec.spec.errors import InputError

T = torch.Tensor
TABLE, LENGTHS = torch.tensor([[3, 0], [3, 2], [3, 1]]), torch.tensor([3, 4, 1])  # pages of 2: all read page 3
SHARED = ("paged-gradients-shared-float32", "paged-gradients-packed-mixed-float32")


def drawn(*shapes: tuple[int, ...]) -> Iterator[T]:
    """Yield tensors of normal numbers."""
    generator = torch.Generator().manual_seed(7)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


# ---------------------------------------------------------------- the reference


def test_a_slot_that_two_sequences_read_gets_the_sum_by_hand() -> None:
    """Scores of 0: every key of a sequence has the weight 1 over its number of keys."""
    pages, table = torch.zeros(4, 2, 1, 1), torch.tensor([[1, 0], [1, 3]])
    flow = torch.tensor([6.0, 10.0]).view(2, 1, 1, 1)
    got = paged_backward(torch.zeros(2, 1, 1, 1), pages, pages, flow, table, torch.tensor([3, 2]))
    # sequence 0 has 3 keys: both slots of page 1 and slot 0 of page 0; sequence 1 has the two of page 1
    assert got.value.flatten().tolist() == pytest.approx([2.0, 0.0, 7.0, 7.0, 0.0, 0.0, 0.0, 0.0])
    assert not got.key.any()
    assert got.value.dtype == torch.float64


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_pages_are_those_of_autograd(is_causal: bool) -> None:
    query, keys, values, flow, of_lse = drawn((3, 4, 1, 5), (5, 2, 2, 5), (5, 2, 2, 3), (3, 4, 1, 3), (3, 4, 1))
    leaves = [x.requires_grad_() for x in (query, keys, values)]
    options: dict[str, Any] = {"is_causal": is_causal, "scale": -0.7}
    result = paged_attention(*leaves, TABLE, LENGTHS, **options)
    assert result.lse is not None
    want = torch.autograd.grad((result.output, result.lse), leaves, (flow, of_lse))
    got = paged_backward(*(x.detach() for x in leaves), flow, TABLE, LENGTHS, grad_lse=of_lse, **options)
    for mine, theirs in zip(got[:3], want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-14)
    assert not got.key[4].any()
    assert not got.key[0, 1].any()
    assert got.key[3].all()


def test_gradients_of_packed_queries_are_those_of_autograd() -> None:
    query, keys, values, flow, of_lse = drawn((5, 4, 5), (5, 2, 2, 5), (5, 2, 2, 3), (5, 4, 3), (4, 5))
    leaves = [x.requires_grad_() for x in (query, keys, values)]
    ends = torch.tensor([0, 2, 2, 5])  # sequence 1 has no queries
    result = packed_paged_attention(*leaves, ends, TABLE, LENGTHS)
    assert result.lse is not None
    want = torch.autograd.grad((result.output, result.lse), leaves, (flow, of_lse))
    got = packed_paged_backward(*(x.detach() for x in leaves), flow, ends, TABLE, LENGTHS, grad_lse=of_lse)
    for mine, theirs in zip(got[:3], want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-14)
    assert not got.value[2].any()


def test_what_goes_into_pages_is_the_adjoint_of_what_comes_out() -> None:
    pages, other = drawn((5, 2, 2, 3), (8, 2, 3))
    sequences = list(other.split(LENGTHS.tolist()))
    taken = torch.cat(in_order(pages, TABLE, LENGTHS))
    assert float((taken * other).sum()) == pytest.approx(float((into_pages(sequences, pages, TABLE) * pages).sum()))


def test_what_lies_where_no_key_is_changes_no_gradient() -> None:
    query, keys, values, flow = drawn((3, 4, 1, 5), (5, 2, 2, 5), (5, 2, 2, 3), (3, 4, 1, 3))
    clean = paged_backward(query, keys, values, flow, TABLE, LENGTHS)
    for junk in (math.nan, math.inf):
        for pages in (keys, values):
            pages[4], pages[0, 1] = junk, junk
        dirty = paged_backward(query, keys, values, flow, TABLE, LENGTHS)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(clean[:3], dirty[:3], strict=True))


def test_gradients_of_another_shape_are_told() -> None:
    query, keys, values = drawn((3, 4, 1, 5), (5, 2, 2, 5), (5, 2, 2, 3))
    with pytest.raises(InputError, match=r"grad_output .*\(3, 4, 1, 2\)"):
        paged_backward(query, keys, values, torch.zeros(3, 4, 1, 2), TABLE, LENGTHS)
    with pytest.raises(InputError, match="differ in blocks, page size or heads"):
        paged_backward(query, keys, values[:4], torch.zeros(3, 4, 1, 3), TABLE, LENGTHS)
    for scale in ("x", math.inf):
        with pytest.raises(InputError, match=rf"^scale is {scale!r}: use a finite number, or None for 1/sqrt"):
            paged_backward(query, keys, values, torch.zeros(3, 4, 1, 3), TABLE, LENGTHS, scale=scale)


# ---------------------------------------------------------------- the truth


def test_the_truth_rounds_the_sum_of_the_readers_once() -> None:
    """One key, which three sequences read with weight 1: the gradient of its value is the sum of what flows back."""
    problem = PagedProblem.parse("lengths=1.1.1/page=1/shared=1/d=1/grad=output/dtype=float64")
    inputs = problem.inputs()
    inputs["grad_output"] = torch.tensor([1.0, 2.0**-53, 2.0**-53], dtype=torch.float64).view(3, 1, 1, 1)
    block = int(inputs["block_table"][0, 0])
    assert problem.truth(inputs)["grad_value_pages"][block, 0, 0, 0] == 1 + 2.0**-52  # one after the other gives 1


def test_a_slot_that_a_sequence_reads_at_two_places_has_the_sum_of_both() -> None:
    """Each sequence alone, its keys in order, by the exact oracle; the two gradients of a slot are equal numbers."""
    golden = load_form("paged-gradients-twice-float32")
    x = {name: tensor.numpy() for name, tensor in golden.inputs.items()}
    sums = {name: torch.zeros_like(golden.truth[f"grad_{name}"]).flatten(0, 1) for name in LEAVES[1:]}
    for b, slots in enumerate(in_use(golden)):
        keys, values = (x[name].reshape(-1, *x[name].shape[2:])[slots].swapaxes(0, 1)[None] for name in LEAVES[1:])
        alone = exact_backward(x["query"][b : b + 1], keys, values, x["grad_output"][b : b + 1])
        assert torch.equal(golden.truth["grad_query"][b : b + 1], torch.from_numpy(alone.query))
        for name, gradient in zip(LEAVES[1:], (alone.key, alone.value), strict=True):
            sums[name].index_add_(0, slots, torch.from_numpy(gradient[0].swapaxes(0, 1).copy()))
        assert len(slots) > len(slots.unique())
    for name, right in sums.items():
        assert torch.equal(golden.truth[f"grad_{name}"].flatten(0, 1), right)


@pytest.mark.parametrize("name", SHARED)
def test_slots_that_no_sequence_reads_have_gradient_0_and_a_budget_of_0(name: str) -> None:
    golden = load_form(name)
    budgets = FORMS["paged"].budgets(golden, "fused")
    counts = golden.case.problem.packed or [1] * 3
    read = torch.zeros(golden.inputs["key_pages"].shape[:2].numel(), dtype=torch.bool)
    for slots, count in zip(in_use(golden), counts, strict=True):
        read[slots] |= count > 0
    for pages in ("grad_key_pages", "grad_value_pages"):
        truth, budget = golden.truth[pages].flatten(0, 1), budgets[pages].flatten(0, 1)
        assert not truth[~read].any()
        assert not budget[~read].any()
        assert truth[read].any(-1).all()
        assert (budget[read] > 0).all()


# ---------------------------------------------------------------- the budget


def test_the_budget_of_a_slot_of_one_reader_is_that_of_the_readers_call() -> None:
    golden = load_form("paged-gradients-float32")  # lengths=9.20.5, none shared
    x, slots = golden.inputs, in_use(golden)[1]
    key, value = (x[name].flatten(0, 1)[slots].transpose(0, 1)[None] for name in LEAVES[1:])
    right = gradient_budget(Call(x["query"][1:2], key, value), x["grad_output"][1:2])
    found = FORMS["paged"].budgets(golden, "fused")
    assert torch.equal(found["grad_key_pages"].flatten(0, 1)[slots], right.key[0].transpose(0, 1))
    assert torch.equal(found["grad_value_pages"].flatten(0, 1)[slots], right.value[0].transpose(0, 1))
    assert torch.equal(found["grad_query"][1:2], right.query)


def test_the_budget_of_a_slot_of_several_readers_by_hand() -> None:
    parts, slot, one = Parts.of((2, 1, 1)), torch.tensor([1]), torch.ones(1, 1, 1, 1, dtype=torch.float64)
    for part in (3.0, -4.0, 2.0):
        parts.add(slot, part * one, one / 64)
    # the positive parts add up to 5, the negative ones to 4; two additions round
    right = 3 / 64 + 2 * 2.0**-8 * (5 + 3 / 64)
    assert parts.bound(2.0**-8).flatten().tolist() == [0.0, right]


def test_the_budget_of_a_slot_that_a_sequence_reads_twice_by_hand() -> None:
    parts = Parts.of((2, 1, 1))
    part = torch.tensor([3.0, 9.0, -4.0], dtype=torch.float64).view(1, 1, 3, 1)
    parts.add(torch.tensor([1, 0, 1]), part, torch.full_like(part, 1 / 64))
    assert parts.bound(2.0**-8).flatten().tolist() == [1 / 64, 2 / 64 + 2.0**-8 * (4 + 2 / 64)]
