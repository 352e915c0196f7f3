"""The forms `packed` and `paged`: values worked out by hand, what their laws and refusals find, and what is told."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import packs
import pytest
import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.forms.hold import FORMS, Held, hold, hold_case, statement
from attnspec.conformance.forms.paged import in_use
from attnspec.golden.store import load_form
from attnspec.spec.call import Call

FORMS_FOLDER = Path(__file__).parent / "honest" / "forms"
COUNTS = {"packed": 41, "paged": 43}
PACKED, PAGED = (runpy.run_path(str(FORMS_FOLDER / f"{form}.py"))["target"] for form in COUNTS)


def one(target: Any, form: str, name: str) -> Held:
    """What came of one case or refusal."""
    (held,) = hold(target, form, names=(name,))
    return held


# ---------------------------------------------------------------- the vectors


@pytest.mark.parametrize(("form", "target"), [("packed", packs.packed), ("paged", packs.paged)])
def test_the_references_pass_every_case_and_refuse_every_wrong_call(form: str, target: Any) -> None:
    results = list(hold(target, form))
    assert [(held.case, held.what) for held in results if held.outcome != "pass"] == []
    assert len(results) == COUNTS[form] + len(FORMS[form].refusals)


def test_a_case_of_a_pack_holds_what_its_string_says() -> None:
    inputs = load_form("packed-gradients-lengths-tail-float32").inputs  # q=3.2/k=5.4/lengths=2.4/tail=2
    assert inputs["cu_seqlens_q"].tolist() == [0, 3, 5]
    assert inputs["cu_seqlens_k"].tolist() == [0, 5, 9]
    assert inputs["key_lengths"].tolist() == [2, 4]
    assert (len(inputs["query"]), len(inputs["key"])) == (7, 11)


def test_absent_keys_and_the_tail_have_gradient_0_and_a_budget_of_0() -> None:
    golden = load_form("packed-gradients-lengths-tail-float32")
    budgets = FORMS["packed"].budgets(golden, "fused")
    none = torch.tensor([2, 3, 4, 9, 10])
    for name in ("grad_key", "grad_value"):
        assert not golden.truth[name][none].any()
        assert not budgets[name][none].any()
        there = [j for j in range(11) if j not in none.tolist()]
        assert golden.truth[name][there].any(-1).all()
    assert not golden.truth["grad_query"][5:].any()
    assert (golden.truth["lse"][:, 5:] == -torch.inf).all()


def test_the_budget_of_a_member_is_that_of_its_own_call() -> None:
    golden = load_form("packed-causal-lower-right-float32")  # q=3.1.2.2/k=5.4.6.3
    x = golden.inputs
    query, key, value = (x[name][place].transpose(0, 1)[None] for name, place in
                         (("query", slice(4, 6)), ("key", slice(9, 15)), ("value", slice(9, 15))))  # fmt: skip
    right = error_budget(Call(query, key, value, is_causal=True), causal_alignment="lower_right")
    found = FORMS["packed"].budgets(golden, "fused")
    assert torch.equal(found["output"][4:6], right.output[0].transpose(0, 1))
    assert torch.equal(found["lse"][:, 4:6], right.lse[0])


def test_one_key_in_a_page_is_its_value() -> None:
    golden = load_form("paged-page-1-float32")  # lengths=5.1.3/page=1
    block = int(golden.inputs["block_table"][1, 0])
    assert torch.equal(golden.truth["output"][1, 0, 0], golden.inputs["value_pages"][block, 0, 0].double())


def test_shared_pages_are_the_same_entries_and_others_are_not() -> None:
    golden = load_form("paged-shared-float32")  # lengths=20.23.17/page=8/shared=2
    table = golden.inputs["block_table"]
    assert torch.equal(table[0, :2].expand(3, 2), table[:, :2])
    assert len(set(table[:, 2].tolist())) == 3
    assert [len(slots) for slots in in_use(golden)] == [20, 23, 17]


@pytest.mark.parametrize(
    ("name", "entries"), [("paged-unused-minus-float32", {-1}), ("paged-unused-beyond-float32", {1005})]
)
def test_unused_entries_name_no_page(name: str, entries: set[int]) -> None:
    inputs = load_form(name).inputs  # lengths=20.5/page=16: 2 and 1 entries are needed, of a pool of 5 pages
    assert {*inputs["block_table"][0, 2:].tolist(), *inputs["block_table"][1, 1:].tolist()} == entries


# ---------------------------------------------------------------- laws


def test_a_value_times_0_is_found_by_nan_alone() -> None:
    def leaks(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        output, lse = PACKED(query, key, value, *rest, **options)
        return output + 0 * value.sum(), lse

    held = one(leaks, "packed", "packed-ragged-float32")
    assert (held.outcome, held.rule) == ("fail", "packed.separate")
    assert held.what == "output changes with nan outside of member 0"


def test_an_infinity_is_found_where_nan_is_swallowed() -> None:
    def leaks(query: Any, key_pages: Any, value_pages: Any, *rest: Any, **options: Any) -> Any:
        output, lse = PAGED(query, key_pages, value_pages, *rest, **options)
        return output + (value_pages == torch.inf).sum(), lse

    held = one(leaks, "paged", "paged-decode-float32")
    assert (held.outcome, held.rule) == ("fail", "paged.absent")
    assert held.what == "output changes with inf and entries of 1008 where no key lies"


def test_an_entry_that_nobody_needs_must_not_be_looked_up() -> None:
    def reads(query: Any, key_pages: Any, value_pages: Any, block_table: Any, *rest: Any, **options: Any) -> Any:
        if (block_table < 0).any():
            raise IndexError("no such page")
        return PAGED(query, key_pages, value_pages, block_table, *rest, **options)

    held = one(reads, "paged", "paged-decode-float32")
    assert (held.outcome, held.rule) == ("fail", "paged.absent")
    assert held.what == "with nan and entries of -1 where no key lies: raised IndexError: no such page"


def test_the_tail_of_the_output_is_the_kernels_affair() -> None:
    def scribbles(*given: Any, **options: Any) -> Any:
        output, lse = PACKED(*given, **options)
        end = int(given[3][-1])
        output[end:], lse[:, end:] = torch.nan, 7.0
        return output, lse

    assert one(scribbles, "packed", "packed-tail-float32").outcome == "pass"


# ---------------------------------------------------------------- what a target need not have


def test_a_kernel_with_one_corner_is_held_to_the_cases_that_show_none() -> None:
    def square(query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, *, is_causal: bool = False) -> Any:
        return PACKED(query, key, value, cu_q, cu_k, is_causal=is_causal)

    assert one(square, "packed", "packed-causal-self-float32").outcome == "pass"
    held = one(square, "packed", "packed-causal-upper-left-float32")
    assert (held.outcome, held.what) == ("not_supported", "the signature has no causal_alignment")
    told = one(square, "packed", "packed-refuses-negative-length").what
    assert told == "the sound call of packed-lengths-float32 gives no result: the signature has no key_lengths"


def test_a_page_size_that_a_kernel_lacks_is_not_supported() -> None:
    def sixteen(query: Any, key_pages: Any, *rest: Any, **options: Any) -> Any:
        if key_pages.shape[1] != 16:
            raise NotImplementedError("pages of 16")
        return PAGED(query, key_pages, *rest, **options)

    results = list(hold(sixteen, "paged"))
    refused = {held.case for held in results if held.outcome == "not_supported"}
    assert not [held.case for held in results if held.outcome == "fail"]
    assert {"paged-page-1-float32", "paged-page-4-bfloat16", "paged-page-7-float32"} < refused
    assert statement(results)[1] == 0


def test_a_packed_kernel_without_gradients_is_not_supported_there() -> None:
    held = hold_case(lambda *x: PACKED(*x)[0].detach(), load_form("packed-gradients-float32"))
    assert (held.outcome, held.what) == ("not_supported", "no gradient comes back: output has no grad_fn")


def test_the_row_of_packed_queries_is_told_by_token_and_head() -> None:
    def shifted(query: Any, *rest: Any, **options: Any) -> Any:
        output, lse = PAGED(query, *rest, **options)
        output[2] += 1
        return output, lse

    held = one(shifted, "paged", "paged-packed-mixed-float32")
    assert dict(held.details)["worst"].startswith("output[2, ")
    assert "(token 2, head " in dict(held.details)["worst"]
