"""Form `context_parallel`: a function `(query, key, value, query_shards, key_shards, *, ...)`. Its budget is the sum of
those of the whole call, of the parts and of their merge (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.forms.merge import merge_budget
from attnspec.conformance.forms.refusals import Arguments, Refusal
from attnspec.conformance.forms.target import Target, Tensors, repeated, there_and_back
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.conformance.outcome import Violation
from attnspec.golden.forms.context_parallel import LEAVES, ContextParallelProblem
from attnspec.golden.forms.form import lse_dtype
from attnspec.golden.store import FormGolden
from attnspec.reference import masks
from attnspec.reference.context_parallel import merge_backward, part
from attnspec.reference.merge import Part
from attnspec.spec.call import Call

Deal = Callable[[list[torch.Tensor]], list[torch.Tensor]]

RULE = "context-parallel.merge"
GRADIENT = "context-parallel.backward"
ROWS, COLUMN = ("batch", "head", "row"), "column"
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, COLUMN), "lse": ROWS, "grad_query": (*ROWS, COLUMN)}
AXES |= dict.fromkeys(("grad_key", "grad_value"), ("batch", "head", "key", COLUMN))


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key, value, query_shards, key_shards, ...)` and return output, lse and gradients.

    query to value: the whole sequence (batch, heads, length, dim), of which a rank's part is
    `query[:, :, query_shards[rank]]`; query_shards, key_shards: lists of int64 tensors, the positions that each rank
    holds. attn_mask (bool), is_causal, causal_alignment and scale are given where the case has them. It returns the
    output (batch, q_heads, q_len, value_dim), or (output, lse) with lse (batch, q_heads, q_len), rows in the order of
    the whole sequence; gradients are asked for through autograd. Raises NotSupported where the signature lacks a word,
    where it refuses by NotImplementedError and where no gradient comes back, Violation where it raises anything else.
    """
    return _run(target, golden, lambda key_shards: key_shards)


def _run(target: Target, golden: FormGolden, arriving: Deal) -> Tensors:
    """As `run`. arriving: the order in which the shards of keys arrive."""
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    problem = cast(ContextParallelProblem, golden.case.problem)
    options = {name: value for name, value in problem.options.items() if value is not None and value is not False}
    if not problem.causal or problem.q == problem.k:
        del options["causal_alignment"]
    if "attn_mask" in inputs:
        options["attn_mask"] = inputs["attn_mask"]
    given = (*(inputs[name] for name in LEAVES), held(inputs, "query"), arriving(held(inputs, "key")))
    return there_and_back(target, inputs, LEAVES, given, options, RULE, GRADIENT)


def held(inputs: Tensors, name: str) -> list[torch.Tensor]:
    """Return the positions of queries or keys that each rank holds. name: `query` or `key`."""
    ends = inputs[f"{name}_counts"].cumsum(0).tolist()
    return list(inputs[f"{name}_positions"].long().tensor_split(ends[:-1]))


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of what `run` returns, float64: what the whole call may be off, and what the
    parts of each pair of shards and their merge add to it. Raises InputError for an unknown class."""
    problem, x = cast(ContextParallelProblem, golden.case.problem), golden.inputs
    q, k, v = (x[name] for name in LEAVES)
    corner, scale = problem.options["causal_alignment"], problem.options["scale"]
    visible = masks.visible((*q.shape[:3], k.shape[2]), x.get("attn_mask"), bool(problem.causal), corner)
    whole = Call(q, k, v, attn_mask=visible, scale=scale, enable_gqa=True)
    of_whole = error_budget(whole, accuracy=accuracy)
    found = {"output": of_whole.output.clone(), "lse": of_whole.lse.clone()}
    flow, grad_lse = x.get("grad_output"), x.get("grad_lse")
    if flow is not None:
        given = gradient_budget(whole, flow, grad_lse, accuracy=accuracy)
        found |= {f"grad_{name}": getattr(given, name).clone() for name in LEAVES}
    for rows in held(x, "query"):
        columns = held(x, "key")
        calls = [
            Call(q[:, :, rows], k[:, :, own], v[:, :, own], visible[:, :, rows][..., own], scale=scale, enable_gqa=True)
            for own in columns
        ]
        parts = [part(q, k, v, rows, own, visible, scale) for own in columns]
        merged = Part(golden.truth["output"][:, :, rows], golden.truth["lse"][:, :, rows])
        added = _of_merge(calls, parts, merged, accuracy, problem.dtype)
        found["output"][:, :, rows] += added.output
        found["lse"][:, :, rows] += added.lse
        if flow is None:
            continue
        back = None if grad_lse is None else grad_lse[:, :, rows]
        arriving = merge_backward(parts, merged, flow[:, :, rows], back)
        for own, call, (to_output, to_lse) in zip(columns, calls, arriving, strict=True):
            of_part = gradient_budget(call, to_output.to(q.dtype), to_lse, accuracy=accuracy)
            for name, place in zip(LEAVES, (rows, own, own), strict=True):
                found[f"grad_{name}"][:, :, place] += getattr(of_part, name)
    return found


def _of_merge(calls: list[Call], parts: list[Part], merged: Part, accuracy: str, dtype: str) -> Part:
    """Return what the parts of some rows and their merge add to the budget of output and lse: each part's own by its
    share, its error of the lse times how far its output is from the merged one, and the merge's."""
    stacked = [torch.stack(x) for x in zip(*parts, strict=True)]
    of_merge = merge_budget(
        stacked[0].to(calls[0].query.dtype), stacked[1].to(getattr(torch, lse_dtype(dtype))), accuracy
    )
    output, lse = of_merge["output"], of_merge["lse"]
    for call, one in zip(calls, parts, strict=True):
        own = error_budget(call, accuracy=accuracy)
        share = torch.exp(one.lse - torch.where(merged.lse == -torch.inf, 0.0, merged.lse))
        apart = (one.output - merged.output).abs()
        output = output + share[..., None] * (own.output + apart * own.lse[..., None])
        lse = lse + share * own.lse
    return Part(output, lse)


def laws(target: Target, golden: FormGolden, found: Tensors, budgets: Tensors) -> None:
    """Hold a target to what needs no vector: shards of keys that arrive in the opposite order give the same, within
    twice the budget. Raises Violation. Rule: `context-parallel.merge`."""
    if cast(ContextParallelProblem, golden.case.problem).ranks == 1:
        return
    what = "the shards of keys in the opposite order"
    again = repeated(RULE, what, _run, target, golden, lambda key_shards: key_shards[::-1])
    for name in found:
        both_empty = (found[name] == -torch.inf) & (again[name] == -torch.inf)
        apart = torch.where(both_empty, 0.0, (again[name].double() - found[name].double()).abs())
        if not bool((apart <= 2 * budgets[name]).all()):
            raise Violation(RULE, f"{name} is another with {what}")


def _changed(place: int, change: Deal) -> Callable[[Arguments], Arguments]:
    return lambda sound: {place: change(list(sound[place]))}


def _with_last(change: Callable[[torch.Tensor], torch.Tensor]) -> Deal:
    return lambda held: [*held[:-1], change(held[-1])]


QUERIES, KEYS = 3, 4  # the places of query_shards and key_shards
SOUND = "context-parallel-contiguous-float32"  # q=10/k=13/ranks=3
COVER = "context-parallel.cover"
REFUSALS = tuple(
    Refusal(f"context-parallel-refuses-{slug}", COVER, SOUND, what, change)
    for slug, what, change in (
        ("key-twice", "key_shards holds position 0 twice",
         _changed(KEYS, _with_last(lambda last: torch.cat([last, torch.tensor([0])])))),
        ("key-missing", "key_shards lacks a position", _changed(KEYS, _with_last(lambda last: last[:-1]))),
        ("key-beyond", "key_shards holds position 13 of 13", _changed(KEYS, _with_last(lambda last: last + 1))),
        ("shard-twice", "key_shards holds the first shard for the last, too",
         _changed(KEYS, lambda held: [*held[:-1], held[0]])),
        ("shard-missing", "key_shards lacks the last shard", _changed(KEYS, lambda held: held[:-1])),
        ("query-missing", "query_shards lacks a position", _changed(QUERIES, _with_last(lambda last: last[:-1]))),
        ("query-twice", "query_shards holds position 0 twice",
         _changed(QUERIES, _with_last(lambda last: torch.cat([last, torch.tensor([0])])))),
        ("negative", "key_shards holds position -1",
         _changed(KEYS, _with_last(lambda last: torch.cat([last[:-1], torch.tensor([-1])])))),
    )
)  # fmt: skip
