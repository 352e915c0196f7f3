"""Form `alibi`: a function `(query, key, value, alibi_slopes, *, is_causal, form, ...)`, and the budget of its results
(chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.projections import apart_term
from attnspec.conformance.forms.target import Target, Tensors, named, need, ran
from attnspec.conformance.row_errors import CONFIDENCE, lse_error, output_error
from attnspec.conformance.rows import Rows, score_ties
from attnspec.golden.forms.alibi import AlibiProblem
from attnspec.golden.store import FormGolden
from attnspec.reference import alibi, grouped_heads, masks
from attnspec.reference.lengths import clear_absent
from attnspec.spec.dtypes import format_of

RULE = "accuracy.alibi-within-budget"
ROWS = ("batch", "head", "row")
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, "column"), "lse": ROWS}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key, value, alibi_slopes)`, with the words that the case has: is_causal, causal_alignment
    where it is `lower_right`, form where it is `signed`, alignment where it is not causal_alignment, scale, enable_gqa
    and key_lengths.

    Shapes are those of `attnspec.reference.alibi.alibi_attention`. It returns the output, or (output, lse). Raises
    NotSupported where the signature lacks a word or the target refuses by NotImplementedError, Violation where it
    raises anything else.
    """
    problem = cast(AlibiProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    said = {
        "is_causal": problem.causal,
        "causal_alignment": problem.corner if problem.corner == "lower_right" else None,
        "form": problem.side if problem.side == "signed" else None,
        "alignment": problem.measured,
        "scale": problem.scale,
        "enable_gqa": problem.hq != problem.hkv,
    }
    options: dict[str, Any] = {name: value for name, value in said.items() if value}
    if "key_lengths" in inputs:
        options["key_lengths"] = inputs["key_lengths"]
    need(target, options)
    tensors = (inputs[name] for name in ("query", "key", "value", "alibi_slopes"))
    with torch.no_grad():
        return named(ran(RULE, target, *tensors, **options), ("output", "lse"), RULE)


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of output and lse, float64: that of the call with the bias as `attn_mask`, and
    the rounding of slope times distance. Raises InputError for an unknown class. Rule:
    `accuracy.alibi-within-budget`."""
    problem, inputs = cast(AlibiProblem, golden.case.problem), golden.inputs
    a = arithmetic_of(format_of(inputs["query"].dtype), accuracy)
    lengths, shape = inputs.get("key_lengths"), (problem.b, problem.hq, problem.q, problem.k)
    corner = problem.measured or problem.corner
    far = alibi.distance(problem.q, problem.k, form=problem.side, alignment=corner, key_lengths=lengths)
    bias = masks.broadcast(alibi.bias(inputs["alibi_slopes"], far), shape)
    visible = masks.visible(shape, None, problem.causal, problem.corner, lengths)
    key, value = inputs["key"], inputs["value"]
    if lengths is not None:
        key, value = (clear_absent(x, problem.b, lengths) for x in (key, value))
    query, key, value = (grouped_heads.expand(x, problem.hq).double() for x in (inputs["query"], key, value))
    found: dict[str, list[torch.Tensor]] = {"output": [], "lse": []}
    for b in range(problem.b):
        scale = problem.scale or problem.d**-0.5
        rows = Rows.of(query[b], key[b], value[b], bias[b], visible[b], scale, a)
        ties = score_ties(rows)
        product = torch.where(visible[b], (a.scores or a.work) * bias[b].abs(), 0.0)  # (q_heads, q_len, k_len)
        moved = rows.unit * apart_term(rows, product, ties)
        found["output"].append(output_error(rows, ties) + CONFIDENCE * (1 + a.output) * moved)
        of_lse = torch.sqrt(ties.squeeze(-1) * ((rows.p * product) ** 2).sum(-1))
        lse = lse_error(rows, ties) + CONFIDENCE * of_lse
        found["lse"].append(torch.where(rows.count.squeeze(-1) > 0, lse, 0.0))
    return {name: torch.stack(parts) for name, parts in found.items()}
