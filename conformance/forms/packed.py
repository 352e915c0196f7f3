"""Form `packed`: a function `(query, key, value, cu_seqlens_q, cu_seqlens_k, *, ...)`. Its budget is that of each
member's own call (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.forms.refusals import Arguments, Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, there_and_back, unchanged
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.golden.forms.packed import LEAVES, PackedProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.call import Call

RULE = "packed.separate"
GRADIENT = "packed.backward"
ROWS, COLUMN = ("token", "head"), "column"
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, COLUMN), "lse": ROWS[::-1], "grad_query": (*ROWS, COLUMN)}
AXES |= dict.fromkeys(("grad_key", "grad_value"), ("key token", "head", COLUMN))
BOUNDARIES = ("cu_seqlens_q", "cu_seqlens_k")


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key, value, cu_seqlens_q, cu_seqlens_k, ...)` and return output, lse and gradients, with
    the tail of output and lse as in the reference, since it is the kernel's affair.

    is_causal, scale, window_size and key_lengths are given where the case has them, and causal_alignment where it has
    a corner and a member that shows which. It returns the output (total_q, q_heads, value_dim), or (output, lse) with
    lse (q_heads, total_q); gradients are asked for through autograd. Raises NotSupported where the signature lacks a
    word, where it refuses by NotImplementedError and where no gradient comes back, Violation where it raises anything
    else.
    """
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    given = [inputs[name] for name in (*LEAVES, *BOUNDARIES)]
    found = there_and_back(target, inputs, LEAVES, given, words(golden), RULE, GRADIENT)
    end = int(inputs["cu_seqlens_q"][-1])
    for name, place in (("output", (slice(end, None),)), ("lse", (slice(None), slice(end, None)))):
        if name in found and found[name].shape == golden.truth[name].shape:
            found[name] = found[name].clone()
            found[name][place] = golden.truth[name][place].to(found[name].dtype)
    return found


def words(golden: FormGolden) -> dict[str, Any]:
    """Return the words that a case has."""
    problem = cast(PackedProblem, golden.case.problem)
    options = {name: value for name, value in problem.options.items() if value is not None and value is not False}
    square = problem.queries == (problem.key_lengths or problem.keys)
    if square or not (problem.causal or problem.window):
        del options["causal_alignment"]
    if "key_lengths" in golden.inputs:
        options["key_lengths"] = golden.inputs["key_lengths"].clone()
    return options


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of what `run` returns, float64: for each member that of its own call, and 0 for
    what belongs to none. Raises InputError for an unknown class."""
    problem, inputs = cast(PackedProblem, golden.case.problem), golden.inputs
    options = dict(problem.options)
    corner = options.pop("causal_alignment")
    found = {name: torch.zeros(truth.shape, dtype=torch.float64) for name, truth in golden.truth.items()}
    for queries, keys in problem.members():
        places = dict(zip(LEAVES, (queries, keys, keys), strict=True))
        one = {name: inputs[name][place].transpose(0, 1)[None] for name, place in places.items()}
        of_member = Call(one["query"], one["key"], one["value"], enable_gqa=True, **options)
        budget = error_budget(of_member, causal_alignment=corner, accuracy=accuracy)
        found["output"][queries] = budget.output[0].transpose(0, 1)
        found["lse"][:, queries] = budget.lse[0]
        if not problem.grad:
            continue
        flow = inputs["grad_output"][queries].transpose(0, 1)[None]
        grad_lse = inputs["grad_lse"][None, :, queries] if problem.grad == "lse" else None
        given = gradient_budget(of_member, flow, grad_lse, causal_alignment=corner, accuracy=accuracy)
        for name, place in places.items():
            found[f"grad_{name}"][place] = getattr(given, name)[0].transpose(0, 1)
    return found


def laws(target: Target, golden: FormGolden, found: Tensors, budgets: Tensors) -> None:
    """Hold a target to what needs no vector: NaN and infinities in other members, in keys that do not exist and behind
    the last boundary leave every bit of `found`, what `run` returned, as it was.

    Raises Violation. Rules: `packed.separate`, `packed.key-lengths`, `packed.tail`, `packed.backward`.
    """
    problem = cast(PackedProblem, golden.case.problem)
    own = list(problem.members())
    rows, there = (slice(None, sum(counts)) for counts in (problem.queries, problem.keys))
    for junk in (math.nan, math.inf):
        if problem.lengths:
            kept = [*(keys for _, keys in own), slice(there.stop, None)]
            dirty = _spoiled(golden, [slice(None)], kept, junk)
            what = f"{junk} in keys that do not exist"
            unchanged(run, target, dirty, found, what, "packed.key-lengths", GRADIENT)
        if problem.tail:
            dirty = _spoiled(golden, [rows], [there], junk)
            unchanged(run, target, dirty, found, f"{junk} behind the last boundary", "packed.tail", GRADIENT)
        for b, (queries, keys) in enumerate(own if len(own) > 1 else ()):
            dirty = _spoiled(golden, [queries], [keys], junk)
            places = {"output": queries, "lse": (slice(None), queries), "grad_query": queries}
            places |= {"grad_key": keys, "grad_value": keys}
            what = f"{junk} outside of member {b}"
            unchanged(run, target, dirty, found, what, "packed.separate", GRADIENT, places)


def _spoiled(golden: FormGolden, queries: list[slice], keys: list[slice], junk: float) -> FormGolden:
    """Return the case with `junk` in all tokens but these, and in what flows back to them."""
    changed = {}
    for name, tensor in golden.inputs.items():
        if name in (*LEAVES, "grad_output"):
            changed[name] = torch.full_like(tensor, junk)
            for place in keys if name in ("key", "value") else queries:
                changed[name][place] = tensor[place]
        if name == "grad_lse":
            changed[name] = torch.full_like(tensor, junk)
            for place in queries:
                changed[name][:, place] = tensor[:, place]
    return FormGolden(golden.case, golden.tensors | changed)


def _listed(place: int | str, values: list[int], dtype: torch.dtype = torch.int32) -> Callable[[Arguments], Arguments]:
    return instead({place: torch.tensor(values, dtype=dtype)})


QUERIES, KEYS = 3, 4  # the places of cu_seqlens_q and cu_seqlens_k
SOUND = "packed-ragged-float32"  # q=3.1.5, k=4.6.5
WITH_LENGTHS = "packed-lengths-float32"  # k=5.4.6
REFUSALS = tuple(
    Refusal(f"packed-refuses-{slug}", rule, case, what, change)
    for slug, rule, case, what, change in (
        ("first-not-0", "packed.boundaries", SOUND, "cu_seqlens_q starts with 1", _listed(QUERIES, [1, 3, 4, 9])),
        ("falling-queries", "packed.boundaries", SOUND, "cu_seqlens_q falls", _listed(QUERIES, [0, 4, 3, 9])),
        ("falling-keys", "packed.boundaries", SOUND, "cu_seqlens_k falls", _listed(KEYS, [0, 10, 4, 15])),
        ("beyond-queries", "packed.boundaries", SOUND, "cu_seqlens_q ends at 10 of 9 tokens",
         _listed(QUERIES, [0, 3, 4, 10])),
        ("beyond-keys", "packed.boundaries", SOUND, "cu_seqlens_k ends at 16 of 15 tokens",
         _listed(KEYS, [0, 4, 10, 16])),
        ("float-boundaries", "packed.boundaries", SOUND, "cu_seqlens_q is float32",
         _listed(QUERIES, [0, 3, 4, 9], torch.float32)),
        ("two-dimensions", "packed.boundaries", SOUND, "cu_seqlens_k has 2 dimensions",
         lambda sound: {KEYS: sound[KEYS][None]}),
        ("other-batch", "packed.boundaries", SOUND, "cu_seqlens_k has 2 members for 3 of the queries",
         _listed(KEYS, [0, 4, 15])),
        ("negative-length", "packed.key-lengths", WITH_LENGTHS, "key_lengths has -1",
         _listed("key_lengths", [2, -1, 6])),
        ("long-length", "packed.key-lengths", WITH_LENGTHS, "key_lengths has 5 for a member of 4 keys",
         _listed("key_lengths", [2, 5, 6])),
    )
)  # fmt: skip
