"""Form `latent`: a function `(query, latent, key_rope, w_uk, w_uv, *, is_causal, ...)`, and the budget of its results,
for the expanded and the absorbed way (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.latent_gradients import gradient_budgets
from attnspec.conformance.forms.projections import apart_term, inner_products, layer_error, shared_term
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, there_and_back, unchanged
from attnspec.conformance.row_errors import CONFIDENCE, lse_error, output_error
from attnspec.conformance.rows import Arithmetic, Rows, score_ties
from attnspec.golden.forms.latent import CACHE, LEAVES, LatentProblem
from attnspec.golden.store import FormGolden
from attnspec.reference import masks
from attnspec.spec.dtypes import format_of

RULE = "accuracy.latent-within-budget"
GRADIENT = "latent.gradient"
ROWS = ("batch", "head", "row")
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, "column"), "lse": ROWS}
AXES |= {"grad_query": (*ROWS, "column"), **{f"grad_{name}": ("batch", "key", "column") for name in CACHE}}
AXES |= {f"grad_{name}": ("head", "row", "column") for name in ("w_uk", "w_uv")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, latent, key_rope, w_uk, w_uv)`, with is_causal, causal_alignment (where it is `lower_right`),
    scale and key_lengths where the case has them.

    Shapes are those of `attnspec.reference.latent.latent_attention`. It returns the output, or (output, lse), and may
    work in the expanded or the absorbed form; gradients are asked for through autograd. Raises NotSupported where the
    signature lacks a word, where the target refuses by NotImplementedError and where no gradient comes back, Violation
    where it raises anything else.
    """
    problem = cast(LatentProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options: dict[str, Any] = {"scale": problem.scale} if problem.scale else {}
    if problem.causal != "none":
        options["is_causal"] = True
    if problem.causal == "lower_right":
        options["causal_alignment"] = problem.causal
    if "key_lengths" in inputs:
        options["key_lengths"] = inputs["key_lengths"]
    given = [inputs[name] for name in LEAVES]
    return there_and_back(target, inputs, LEAVES, given, options, RULE, GRADIENT)


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of output, lse and gradients, float64: the larger one of the two forms, in
    either of which a kernel may work, and 0 for the gradient of a token that no query sees. Raises InputError for an
    unknown class. Rules: `accuracy.latent-within-budget`, `latent.absorbed`, `latent.gradient`."""
    problem, inputs = cast(LatentProblem, golden.case.problem), golden.inputs
    a = arithmetic_of(format_of(inputs["query"].dtype), accuracy)
    lengths = inputs.get("key_lengths")
    corner = "lower_right" if problem.causal == "lower_right" else "upper_left"
    shape = (problem.b, problem.h, problem.q, problem.k)
    visible = masks.visible(shape, None, problem.causal != "none", corner, lengths)
    scale = problem.scale or (problem.nope + problem.rope) ** -0.5
    found: dict[str, list[torch.Tensor]] = {"output": [], "lse": []}
    seen = visible.any(-2)[:, 0, :, None]  # (batch, k_len, 1)
    cache = {name: torch.where(seen, inputs[name], 0.0) for name in CACHE}
    for b in range(problem.b):
        tokens = (inputs["query"][b], cache["latent"][b], cache["key_rope"][b])
        given = (*tokens, inputs["w_uk"], inputs["w_uv"], visible[b], scale, a)
        ways = (expanded_budget(*given), absorbed_budget(*given))
        for name, pair in zip(found, zip(*ways, strict=True), strict=True):
            found[name].append(torch.maximum(*pair))
    results = {name: torch.stack(parts) for name, parts in found.items()}
    if problem.grad:
        of_ways = gradient_budgets(inputs | cache, visible, scale, a)
        results |= {f"grad_{name}": budget for name, budget in of_ways.items()}
        results |= {f"grad_{name}": torch.where(seen, of_ways[name], 0.0) for name in CACHE}
    return results


def laws(target: Target, golden: FormGolden, found: Tensors, budgets: Tensors) -> None:
    """Hold a target to what needs no vector: NaN and infinities in tokens that do not exist leave every bit of `found`,
    what `run` returned, as it was.

    Raises Violation. Rule: `key-lengths.absent`.
    """
    inputs, rule = golden.inputs, "key-lengths.absent"
    if rule not in golden.case.rules:
        return
    there = torch.arange(inputs["latent"].shape[1])[:, None] < inputs["key_lengths"][:, None, None]  # (b, k_len, 1)
    for junk in (math.nan, math.inf):
        dirty = {name: inputs[name].where(there, junk) for name in CACHE}
        spoiled = FormGolden(golden.case, golden.tensors | dirty)
        unchanged(run, target, spoiled, found, f"{junk} in tokens that do not exist", rule, rule)


def expanded_budget(
    query: torch.Tensor,
    latent: torch.Tensor,
    key_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    a: Arithmetic,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what output (heads, q_len, value_dim) and lse (heads, q_len) of one batch element may be off by where
    keys and values are made for all heads. Chapter "accuracy", equation (11)."""
    heads = len(w_uk)
    e_key, e_value = (torch.stack([layer_error(latent, w, None, a.work, a.output) for w in ws]) for ws in (w_uk, w_uv))
    c, q = latent.double(), query.double()
    rope = key_rope.double().expand(heads, -1, -1)
    key = torch.cat([c @ w_uk.double().transpose(-1, -2), rope], -1)  # (heads, k_len, nope_dim + rope_dim)
    value = c @ w_uv.double().transpose(-1, -2)  # (heads, k_len, value_dim)
    rows = Rows.of(q, key, value, None, visible, scale, a)
    ties = score_ties(rows)
    nope = q[..., : w_uk.shape[1]]
    of_keys = abs(scale) * torch.sqrt(nope**2 @ (e_key**2).transpose(-1, -2))  # (heads, q_len, k_len)
    values2 = ties * (rows.p**2 @ e_value**2)  # (heads, q_len, value_dim)
    moved = torch.sqrt((rows.unit * apart_term(rows, of_keys, ties)) ** 2 + values2)
    output = output_error(rows, ties) + CONFIDENCE * (1 + a.output) * moved
    of_lse = torch.sqrt(ties * ((rows.p * of_keys) ** 2).sum(-1, keepdim=True)).squeeze(-1)
    lse = lse_error(rows, ties) + CONFIDENCE * of_lse
    return output, torch.where(rows.count.squeeze(-1) > 0, lse, 0.0)


def absorbed_budget(
    query: torch.Tensor,
    latent: torch.Tensor,
    key_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    a: Arithmetic,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what output (heads, q_len, value_dim) and lse (heads, q_len) of one batch element may be off by where W^UK
    goes into the query and W^UV out of the sum. Chapter "accuracy", equation (12)."""
    heads, q_len, nope_dim, rank = *query.shape[:2], *w_uk.shape[1:]
    nope, rope = query[..., :nope_dim], query[..., nope_dim:].double()
    e_query = torch.stack([layer_error(x, w.T, None, a.work, a.output) for x, w in zip(nope, w_uk, strict=True)])
    q = torch.cat([nope.double() @ w_uk.double(), rope], -1)  # (heads, q_len, kv_rank + rope_dim)
    c, outward = latent.double(), w_uv.double()
    key = torch.cat([c, key_rope.double()], -1).expand(heads, -1, -1)
    values = c @ outward.transpose(-1, -2)  # (heads, k_len, value_dim): the cache after W^UV
    rows = Rows.of(q, key, values, None, visible, scale, replace(a, output=0.0, tiny=0.0))
    ties = score_ties(rows)
    slope = (scale * c).expand(heads, q_len, -1, -1)  # (heads, q_len, k_len, kv_rank)
    attended, size = rows.p @ c, rows.p @ c.abs()  # (heads, q_len, kv_rank)
    alone2 = (a.output * attended) ** 2 + 2 * rows.count * (a.work * size) ** 2  # its store, its sum
    weight2 = (outward**2).transpose(-1, -2)  # (heads, kv_rank, value_dim)
    total = rows.p @ values
    last = inner_products(rank, total, torch.sqrt(attended**2 @ weight2), a.work)
    of_query = rows.unit * shared_term(rows, slope, e_query, rows.v)
    parts2 = (scale * (q[..., :rank] @ c.T)) ** 2 + (scale * (rope @ key_rope.double().T)) ** 2
    of_parts = torch.where(rows.p > 0, a.scores * torch.sqrt(parts2), 0.0)  # stored before they are added
    moved2 = of_query**2 + (rows.unit * apart_term(rows, of_parts, ties)) ** 2
    error = output_error(rows, ties) + CONFIDENCE * torch.sqrt(moved2 + alone2 @ weight2 + last**2)
    output = error + a.output * (total.abs() + error) + a.flushed * (rank + 1) + a.tiny
    apart2 = ties * ((rows.p * of_parts) ** 2).sum(-1, keepdim=True)
    of_lse = torch.sqrt(shared_term(rows, slope, e_query, None) ** 2 + apart2).squeeze(-1)
    lse = lse_error(rows, ties) + CONFIDENCE * of_lse
    return output, torch.where(rows.count.squeeze(-1) > 0, lse, 0.0)


KEY_ROPE, W_UK, W_UV = 2, 3, 4  # places
SOUND, CACHED = "latent-plain-float32", "latent-decode-float32"
REFUSALS = (
    Refusal("latent-refuses-w-uk-of-one-head", "latent.shape", SOUND, "w_uk has one head, the query three",
            lambda sound: {W_UK: sound[W_UK][:1]}),
    Refusal("latent-refuses-w-uv-of-one-head", "latent.shape", SOUND, "w_uv has one head, the query three",
            lambda sound: {W_UV: sound[W_UV][:1]}),
    Refusal("latent-refuses-another-rank", "latent.shape", SOUND,
            "w_uk and w_uv take a kv_rank of 1, the cache holds 8 elements",
            lambda sound: {place: sound[place][..., :1] for place in (W_UK, W_UV)}),
    Refusal("latent-refuses-another-head-dim", "latent.shape", SOUND,
            "nope_dim + rope_dim is 9, the dimension of the query 8",
            lambda sound: {KEY_ROPE: torch.cat([sound[KEY_ROPE], sound[KEY_ROPE][..., :1]], -1)}),
    Refusal("latent-refuses-a-length-beyond-the-cache", "key-lengths.range", CACHED, "a length is 18 of 17 keys",
            instead({"key_lengths": torch.tensor([18, 1, 17], dtype=torch.int32)})),
)  # fmt: skip
