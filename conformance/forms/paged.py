"""Form `paged`: a function `(query, key_pages, value_pages, block_table, key_lengths, *, ...)`. Its budget is that of
the call on the keys and values put in order, and for gradients what adding up the readers of a slot may round (chapter
"accuracy", "Budgets of the forms")."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.forms.refusals import Arguments, Refusal
from attnspec.conformance.forms.target import Target, Tensors, there_and_back, unchanged
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.golden.forms.packed import boundaries
from attnspec.golden.forms.paged import BEYOND, LEAVES, PagedProblem
from attnspec.golden.store import FormGolden
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call
from attnspec.spec.dtypes import format_of

RULE = "paged.order"
GRADIENT = "paged.backward"
ROWS, COLUMN = ("batch", "head", "row"), "column"
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, COLUMN), "lse": ROWS, "grad_query": (*ROWS, COLUMN)}
AXES |= dict.fromkeys(("grad_key_pages", "grad_value_pages"), ("page", "slot", "head", COLUMN))
PLACES = ("query", "key_pages", "value_pages", "block_table", "key_lengths")


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key_pages, value_pages, block_table, key_lengths, ...)` and return output, lse and gradients.

    is_causal, scale and cu_seqlens_q are given where the case has them. With cu_seqlens_q, (batch + 1,), the query is
    packed, (total_q, q_heads, head_dim), else (batch, q_heads, q_len, head_dim). It returns the output, of the query's
    shape but for the last dimension, or (output, lse) with lse (batch, q_heads, q_len), for packed queries (q_heads,
    total_q); gradients of query, key_pages and value_pages are asked for through autograd. Raises NotSupported where
    the signature lacks a word, where it refuses by NotImplementedError and where no gradient comes back, Violation
    where it raises anything else.
    """
    problem = cast(PagedProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options: dict[str, Any] = {"is_causal": True} if problem.causal else {}
    if problem.scale:
        options["scale"] = float(problem.scale)
    if "cu_seqlens_q" in inputs:
        options["cu_seqlens_q"] = inputs["cu_seqlens_q"]
    given = [inputs[name] for name in PLACES]
    return there_and_back(target, inputs, LEAVES, given, options, RULE, GRADIENT)


class OneSequence(NamedTuple):
    """The call of one sequence on its keys in order, with what arrives at its output and lse, where its results lie,
    and the slots of its keys in the pool: page times page_size plus slot."""

    call: Call
    place: slice
    slots: torch.Tensor


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of what `run` returns, float64: that of each sequence's call on its keys in
    order, and for the gradient of a slot those of its readers and of the additions. Raises InputError for an unknown
    class."""
    problem = cast(PagedProblem, golden.case.problem)
    found = {name: torch.zeros(golden.truth[name].shape, dtype=torch.float64) for name in ("output", "lse")}
    for b, one in enumerate(sequences(golden)):
        budget = error_budget(one.call, causal_alignment="lower_right", accuracy=accuracy)
        found["output"][one.place] = _in_place(budget.output, problem)
        found["lse"][(slice(None), one.place) if problem.packed else b] = budget.lse[0]
    return found | (_gradients(golden, accuracy) if problem.grad else {})


def _gradients(golden: FormGolden, accuracy: str) -> Tensors:
    """Return the budgets of the gradients."""
    problem, x = cast(PagedProblem, golden.case.problem), golden.inputs
    of_query = torch.zeros(x["query"].shape, dtype=torch.float64)
    of_keys, of_values = (Parts.of(x[name].flatten(0, 1).shape) for name in LEAVES[1:])
    for call, place, slots in sequences(golden):
        flow = call.grad_output
        if flow is None or 0 in flow.shape:  # a sequence without queries reads nothing
            continue
        given = gradient_budget(call, flow, call.grad_lse, causal_alignment="lower_right", accuracy=accuracy)
        exact = gradients(call, "lower_right")
        of_query[place] = _in_place(given.query, problem)
        of_keys.add(slots, exact.key, given.key)
        of_values.add(slots, exact.value, given.value)
    unit = format_of(x["query"].dtype).unit_roundoff
    return {
        "grad_query": of_query,
        "grad_key_pages": of_keys.bound(unit).view(x["key_pages"].shape),
        "grad_value_pages": of_values.bound(unit).view(x["value_pages"].shape),
    }


def sequences(golden: FormGolden) -> Iterator[OneSequence]:
    """Yield the sequences of a case."""
    problem, x = cast(PagedProblem, golden.case.problem), golden.inputs
    starts = boundaries(problem.packed or [1] * len(problem.key_lengths))
    scale = float(problem.scale) if problem.scale else None
    flow, grad_lse = x.get("grad_output"), x.get("grad_lse")
    for b, slots in enumerate(in_use(golden)):
        place = slice(starts[b], starts[b + 1])
        key, value = (x[pages].flatten(0, 1)[slots].transpose(0, 1)[None] for pages in LEAVES[1:])
        call = Call(
            _alone(x["query"], place, problem),
            key,
            value,
            is_causal=problem.causal,
            scale=scale,
            enable_gqa=True,
            grad_output=None if flow is None else _alone(flow, place, problem),
            grad_lse=None if grad_lse is None else grad_lse[None, :, place] if problem.packed else grad_lse[place],
        )
        yield OneSequence(call, place, slots)


def _alone(rows: torch.Tensor, place: slice, problem: PagedProblem) -> torch.Tensor:
    """Return the rows of one sequence, packed or not, as (1, heads, q_len, dim)."""
    return rows[place].transpose(0, 1)[None] if problem.packed else rows[place]


def _in_place(rows: torch.Tensor, problem: PagedProblem) -> torch.Tensor:
    """Return the rows of one sequence, (1, heads, q_len, dim), as they lie among those of the others."""
    return rows[0].transpose(0, 1) if problem.packed else rows


@dataclass(frozen=True)
class Parts:
    """What the sequences of a call add to the gradient of each slot, (slots, kv_heads, dim). rising, falling: the sums
    of what is above 0 and below it, the bounds of every partial sum; errors: the sum of the sequences' own budgets;
    readers: how many there are, (slots, 1, 1)."""

    rising: torch.Tensor
    falling: torch.Tensor
    errors: torch.Tensor
    readers: torch.Tensor

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Parts:
        """Return the parts of no sequence."""
        return cls(*(torch.zeros(size, dtype=torch.float64) for size in (shape, shape, shape, (shape[0], 1, 1))))

    def add(self, slots: torch.Tensor, part: torch.Tensor, error: torch.Tensor) -> None:
        """Take in what one sequence gives to its slots, and the budget of that, each (1, kv_heads, length, dim)."""
        part, error = part[0].transpose(0, 1), error[0].transpose(0, 1)
        self.rising.index_add_(0, slots, part.clamp_min(0.0))
        self.falling.index_add_(0, slots, -part.clamp_max(0.0))
        self.errors.index_add_(0, slots, error)
        self.readers.index_add_(0, slots, torch.ones(len(slots), 1, 1, dtype=torch.float64))

    def bound(self, unit: float) -> torch.Tensor:
        """Return what the sum may be off by when each addition rounds by `unit`. Chapter "accuracy", equation (14)."""
        largest = torch.maximum(self.rising, self.falling) + self.errors
        return self.errors + (self.readers - 1).clamp_min(0.0) * unit * largest


def in_use(golden: FormGolden) -> list[torch.Tensor]:
    """Return for each sequence where its keys lie in the pool, in order: page times page_size plus slot."""
    problem, table = cast(PagedProblem, golden.case.problem), golden.inputs["block_table"].long()
    order = (torch.arange(length) for length in problem.key_lengths)
    return [table[b, j // problem.page] * problem.page + j % problem.page for b, j in enumerate(order)]


def laws(target: Target, golden: FormGolden, found: Tensors, budgets: Tensors) -> None:
    """Hold a target to what needs no vector: NaN and infinities in slots that no sequence uses, and numbers of pages
    that do not exist in entries that none needs, leave every bit of `found`, what `run` returned, as it was.

    Raises Violation. Rules: `paged.absent`, `paged.backward`.
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
        spoiled = FormGolden(golden.case, golden.tensors | dirty)
        unchanged(run, target, spoiled, found, what, "paged.absent", GRADIENT)


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
