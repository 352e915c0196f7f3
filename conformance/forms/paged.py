"""Form `paged`: a function `(query, key_pages, value_pages, block_table, key_lengths, *, ...)`. Its budget is that of
the call on the keys and values put in order (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.forms.refusals import Arguments, Refusal
from attnspec.conformance.forms.target import Target, Tensors, named, need, ran, repeated
from attnspec.conformance.outcome import Violation
from attnspec.golden.forms.packed import boundaries
from attnspec.golden.forms.paged import BEYOND, PagedProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.call import Call

RULE = "paged.order"
AXES: dict[str, tuple[str, ...]] = {"output": ("batch", "head", "row", "column"), "lse": ("batch", "head", "row")}
PLACES = ("query", "key_pages", "value_pages", "block_table", "key_lengths")


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key_pages, value_pages, block_table, key_lengths, ...)` and return output and lse.

    is_causal, scale and cu_seqlens_q are given where the case has them. With cu_seqlens_q, (batch + 1,), the query is
    packed, (total_q, q_heads, head_dim), else (batch, q_heads, q_len, head_dim). It returns the output, of the query's
    shape but for the last dimension, or (output, lse) with lse (batch, q_heads,
    q_len), for packed queries (q_heads, total_q). Raises NotSupported where the signature lacks a word and where it
    refuses by NotImplementedError, Violation where it raises anything else.
    """
    problem = cast(PagedProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options: dict[str, Any] = {"is_causal": True} if problem.causal else {}
    if problem.scale:
        options["scale"] = float(problem.scale)
    if "cu_seqlens_q" in inputs:
        options["cu_seqlens_q"] = inputs["cu_seqlens_q"]
    need(target, options)
    with torch.no_grad():
        return named(ran(RULE, target, *(inputs[name] for name in PLACES), **options), ("output", "lse"), RULE)


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of output and lse, float64: that of each sequence's call on its keys in order.
    Raises InputError for an unknown class."""
    problem, x = cast(PagedProblem, golden.case.problem), golden.inputs
    found = {name: torch.zeros(truth.shape, dtype=torch.float64) for name, truth in golden.truth.items()}
    starts = boundaries(problem.packed or [1] * len(problem.key_lengths))
    scale = float(problem.scale) if problem.scale else None
    for b, slots in enumerate(in_use(golden)):
        place = slice(starts[b], starts[b + 1])
        query = x["query"][place].transpose(0, 1)[None] if problem.packed else x["query"][place]
        key, value = (x[pages].flatten(0, 1)[slots].transpose(0, 1)[None] for pages in ("key_pages", "value_pages"))
        call = Call(query, key, value, is_causal=problem.causal, scale=scale, enable_gqa=True)
        budget = error_budget(call, causal_alignment="lower_right", accuracy=accuracy)
        found["output"][place] = budget.output[0].transpose(0, 1) if problem.packed else budget.output
        found["lse"][(slice(None), place) if problem.packed else b] = budget.lse[0]
    return found


def in_use(golden: FormGolden) -> list[torch.Tensor]:
    """Return for each sequence where its keys lie in the pool, in order: page times page_size plus slot."""
    problem, table = cast(PagedProblem, golden.case.problem), golden.inputs["block_table"].long()
    order = (torch.arange(length) for length in problem.key_lengths)
    return [table[b, j // problem.page] * problem.page + j % problem.page for b, j in enumerate(order)]


def laws(target: Target, golden: FormGolden, found: Tensors, budgets: Tensors) -> None:
    """Hold a target to what needs no vector: NaN and infinities in slots that no sequence uses, and numbers of pages
    that do not exist in entries that none needs, leave every bit of `found`, what `run` returned, as it was.

    Raises Violation. Rule: `paged.absent`.
    """
    problem, inputs = cast(PagedProblem, golden.case.problem), golden.inputs
    used = torch.zeros(inputs["key_pages"].shape[:2].numel(), dtype=torch.bool)
    used[torch.cat(in_use(golden))] = True
    used = used.view(-1, problem.page, 1, 1)
    needed = torch.arange(inputs["block_table"].shape[1]) < torch.tensor(problem.pages)[:, None]
    for junk, entry in ((math.nan, -1), (math.inf, len(used) + BEYOND)):
        dirty = {name: inputs[name].where(used, junk) for name in ("key_pages", "value_pages")}
        dirty["block_table"] = inputs["block_table"].where(needed, entry)
        what = f"{junk} and entries of {entry} where no key lies"
        again = repeated("paged.absent", what, run, target, FormGolden(golden.case, golden.tensors | dirty))
        for name, right in found.items():
            if not torch.equal(again[name], right):
                raise Violation("paged.absent", f"{name} changes with {what}")


KEYS, VALUES, TABLE, LENGTHS = range(1, 5)  # places of the pages, the table and the lengths


def _entry(b: int, place: int, block: int) -> Callable[[Arguments], Arguments]:
    """Return a change that puts a block number into the table; one that is not negative counts from num_blocks."""

    def change(sound: Arguments) -> Arguments:
        table = sound[TABLE].clone()
        table[b, place] = block if block < 0 else len(sound[KEYS]) + block
        return {TABLE: table}

    return change


def _length(b: int, length: int) -> Callable[[Arguments], Arguments]:
    """Return a change of one length; a positive one counts from the capacity of the table."""

    def change(sound: Arguments) -> Arguments:
        lengths = sound[LENGTHS].clone()
        lengths[b] = length if length < 0 else sound[TABLE].shape[1] * sound[KEYS].shape[1] + length
        return {LENGTHS: lengths}

    return change


def _no_slots(sound: Arguments) -> Arguments:
    """Return pages of no token, and lengths that need none."""
    pages: Arguments = {place: sound[place][:, :0] for place in (KEYS, VALUES)}
    return pages | {LENGTHS: torch.zeros_like(sound[LENGTHS])}


SOUND = "paged-decode-float32"  # lengths=20.5.33, page=16
REFUSALS = tuple(
    Refusal(f"paged-refuses-{slug}", rule, case, what, change)
    for slug, rule, case, what, change in (
        ("negative-entry", "paged.table-range", SOUND, "block_table has -1 where a page is needed", _entry(2, 1, -1)),
        ("entry-beyond", "paged.table-range", SOUND, "block_table has num_blocks where a page is needed",
         _entry(2, 2, 0)),
        ("first-entry-beyond", "paged.table-range", SOUND, "block_table has num_blocks + 7 first", _entry(0, 0, 7)),
        ("negative-length", "paged.length-range", SOUND, "key_lengths has -1", _length(1, -1)),
        ("length-beyond", "paged.length-range", SOUND, "key_lengths has one more than the slots of the table",
         _length(0, 1)),
        ("page-of-0", "paged.page-size", SOUND, "page_size is 0", _no_slots),
    )
)  # fmt: skip
