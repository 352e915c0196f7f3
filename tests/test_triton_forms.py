"""Packed, paged and merged attention in Triton: held to the vectors of their forms, and clear about bad input."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import FORMS, hold
from attnspec.golden.forms import FORM_CASES
from attnspec.implementations.triton_flash.merge import merge
from attnspec.implementations.triton_flash.packed import packed_attention
from attnspec.implementations.triton_flash.paged import paged_attention
from attnspec.spec.errors import InputError

TARGETS: dict[str, Any] = {
    "packed": partial(packed_attention, tile=(16, 16)),
    "paged": partial(paged_attention, tile=(16, 16), split_keys=16),
    "merge": merge,
}
HELD = [(case.form, case.name) for case in FORM_CASES if case.form in TARGETS]
HELD += [(form, refusal.name) for form in TARGETS for refusal in FORMS[form].refusals]
REFUSED = {"packed-ragged-float64", "packed-gradients-float64", "paged-decode-float64"}  # the dtype
REFUSED |= {name for _, name in HELD if name.startswith("paged-gradients")}


@pytest.mark.parametrize(("form", "name"), HELD, ids=[name for _, name in HELD])
def test_a_vector_of_the_form_is_met(form: str, name: str) -> None:
    (held,) = hold(TARGETS[form], form, names=(name,))
    assert (held.outcome, held.what) == ("pass", "") or (held.outcome == "not_supported" and name in REFUSED)


def packed_call(**changes: Any) -> dict[str, Any]:
    """The arguments of a call of two sequences, of 2 and 3 queries over 4 and 3 keys."""
    cu_q, cu_k = torch.tensor([0, 2, 5]), torch.tensor([0, 4, 7])
    query, key = torch.randn(5, 2, 8), torch.randn(7, 2, 8)
    return {"query": query, "key": key, "value": key, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k} | changes


def test_the_sequences_of_a_pack_are_calls_of_their_own() -> None:
    given = packed_call()
    output, lse = packed_attention(**given, is_causal=True, causal_alignment="lower_right")
    for rows, keys in ((slice(0, 2), slice(0, 4)), (slice(2, 5), slice(4, 7))):
        alone, of_lse = packed_attention(
            given["query"][rows], given["key"][keys], given["value"][keys],
            torch.tensor([0, rows.stop - rows.start]), torch.tensor([0, keys.stop - keys.start]),
            is_causal=True, causal_alignment="lower_right",
        )  # fmt: skip
        assert torch.equal(output[rows], alone)
        assert torch.equal(lse[:, rows], of_lse)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict.fromkeys(("query", "key", "value"), torch.zeros(5, 2, 8).double()), "query is torch.float64: use fl"),
        ({"query": torch.zeros(5, 8)}, r"use \(tokens, heads, dim\)"),
        ({"query": torch.zeros(5, 3, 8)}, "use as many key heads as query heads, or a divisor"),
        ({"value": torch.zeros(7, 2, 8, dtype=torch.float16)}, "torch.float16: use one dtype"),
        ({"value": torch.zeros(6, 2, 8)}, "key and value differ in length or heads"),
        ({"cu_seqlens_q": torch.tensor([0, 6])}, r"cu_seqlens_q is \[0, 6\]: begin with 0, never fall, and end at 5"),
        ({"cu_seqlens_q": torch.tensor([0, 5])}, "cu_seqlens_q has 1 sequences, cu_seqlens_k 2"),
        ({"key_lengths": torch.tensor([5, 1])}, r"key_lengths is \[5, 1\]: use 0 to \[4, 3\]"),
        ({"causal_alignment": "middle"}, "causal_alignment is 'middle'"),
    ],
)
def test_a_bad_pack_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        packed_attention(**packed_call(**changes))
    assert "\n" not in str(caught.value)


def paged_call(**changes: Any) -> dict[str, Any]:
    """The arguments of a call of one sequence of 5 keys in pages of 4, of a pool of 3."""
    pages, lengths = torch.randn(3, 4, 1, 8), torch.tensor([5])
    call = {"query": torch.randn(1, 2, 1, 8), "key_pages": pages, "value_pages": pages, "key_lengths": lengths}
    return call | {"block_table": torch.tensor([[2, 0]])} | changes


def test_splits_of_pages_merge_to_the_whole() -> None:
    pages, table = torch.randn(9, 4, 1, 8), torch.tensor([[2, 0, 5, 7, 1, 8, 3, 4, 6]])
    given = paged_call(key_pages=pages, value_pages=pages, block_table=table, key_lengths=torch.tensor([35]))
    whole, lse = paged_attention(**given)
    split, of_split = paged_attention(**given, split_keys=16, tile=(16, 16))
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(of_split, lse, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_table": torch.tensor([[2, 3]])}, "names a page that is needed and not there: use 0 to 2"),
        ({"block_table": torch.tensor([2, 0])}, r"block_table is torch.int64 \(2,\): use int32 or int64, \(batch, "),
        ({"key_lengths": torch.tensor([9])}, r"key_lengths is \[9\]: use 0 to \[8\]"),
        ({"query": torch.zeros(2, 2, 1, 8)}, "query has a batch of 2, block_table one of 1"),
        ({"query": torch.zeros(2, 1, 8)}, r"use query \(batch, heads, length, dim\)"),
        ({"query": torch.zeros(1, 2, 1, 8, requires_grad=True)}, "paged attention has no gradients"),
        ({"key_pages": torch.zeros(3, 0, 1, 8), "value_pages": torch.zeros(3, 0, 1, 8)}, "use a page_size of 1"),
    ],
)
def test_bad_pages_are_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        paged_attention(**paged_call(**changes))
    assert "\n" not in str(caught.value)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"use \(parts, ..., value_dim\) and float32 or float64 \(parts, ...\)"):
        merge(torch.zeros(2, 1, 1, 3, 4), torch.zeros(2, 1, 1, 4))
