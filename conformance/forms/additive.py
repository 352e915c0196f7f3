"""Form `additive`: a function `(query, key, value, w_q, w_k, v_a, *, attn_mask, is_causal)`, and the budget of its
results (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from attnspec.conformance.budget import EXP_ROUNDOFFS, arithmetic_of
from attnspec.conformance.forms.projections import apart_term, inner_products, layer_error, shared_term
from attnspec.conformance.forms.target import Target, Tensors, named, need, ran
from attnspec.conformance.row_errors import CONFIDENCE, lse_error, output_error
from attnspec.conformance.rows import Arithmetic, Rows, score_ties
from attnspec.golden.forms.additive import NETWORK, AdditiveProblem
from attnspec.golden.store import FormGolden
from attnspec.reference import masks
from attnspec.spec.dtypes import format_of

RULE = "accuracy.additive-within-budget"
ROWS = ("batch", "head", "row")
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, "column"), "weights": (*ROWS, "key"), "lse": ROWS}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key, value, w_q, w_k, v_a)`, with attn_mask and is_causal where the case has them.

    The mask is bool, or of the dtype of the query and then added to the scores. The target returns the output, or
    (output, weights), or (output, weights, lse). Raises NotSupported where the signature lacks a word or the target
    refuses by NotImplementedError, Violation where it raises anything else.
    """
    problem = cast(AdditiveProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options: dict[str, Any] = {"attn_mask": inputs["attn_mask"]} if "attn_mask" in inputs else {}
    if problem.causal:
        options["is_causal"] = True
    need(target, options)
    query, key, *parameters = (inputs[name] for name in NETWORK)
    with torch.no_grad():
        returned = ran(RULE, target, query, key, inputs["value"], *parameters, **options)
    return named(returned, ("output", "weights", "lse"), RULE)


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of output, weights and lse, float64. Raises InputError for an unknown class.
    Rule: `accuracy.additive-within-budget`."""
    problem, inputs = cast(AdditiveProblem, golden.case.problem), golden.inputs
    a = arithmetic_of(format_of(inputs["query"].dtype), accuracy)
    shape = (problem.b, problem.h, problem.q, problem.k)
    visible = masks.visible(shape, inputs.get("attn_mask"), problem.causal, "upper_left")
    bias = _bias(inputs.get("attn_mask"), shape)
    found: dict[str, list[torch.Tensor]] = {"output": [], "weights": [], "lse": []}
    for b in range(problem.b):
        network = _Network(inputs, b, a)
        for name, values in (("output", inputs["value"][b].double()), ("weights", _units(problem))):
            output, lse = network.errors(values, visible[b], None if bias is None else bias[b])
            found[name].append(output)
        found["lse"].append(lse)
    return {name: torch.stack(parts) for name, parts in found.items()}


def _bias(attn_mask: torch.Tensor | None, shape: tuple[int, int, int, int]) -> torch.Tensor | None:
    """Return what a mask adds to the scores, 0 where it hides, or None where it adds nothing."""
    if attn_mask is None or not attn_mask.dtype.is_floating_point:
        return None
    return masks.bias(shape, attn_mask.masked_fill(attn_mask == -torch.inf, 0.0))


def _units(problem: AdditiveProblem) -> torch.Tensor:
    """Return values of which each is one key's unit vector: their mean is the weights."""
    return torch.eye(problem.k, dtype=torch.float64).expand(problem.h, -1, -1)


class _Network:
    """The scores of one batch element, and how far they are off. s: (heads, q_len, k_len) scores; slope: v_h (1 -
    tanh^2), (heads, q_len, k_len, hidden); e_q: (heads, q_len, hidden) errors of W_q q; own: (heads, q_len, k_len)
    errors that are each pair's own, both in units of CONFIDENCE."""

    def __init__(self, inputs: Tensors, b: int, a: Arithmetic) -> None:
        query, key, w_q, w_k, v_a = (inputs[name] for name in NETWORK)
        query, key, mix = query[b], key[b], v_a.double()
        self.arithmetic = a
        stored = a.scores or a.work  # what each operation between the layers and the softmax is stored in
        argument = (query.double() @ w_q.double().T)[:, :, None] + (key.double() @ w_k.double().T)[:, None]
        tanh = torch.tanh(argument)  # (heads, q_len, k_len, hidden)
        self.s = tanh @ mix
        self.slope = mix * (1 - tanh**2)
        self.e_q = layer_error(query, w_q, None, a.work, a.output)
        e_k = layer_error(key, w_k, None, a.work, a.output)[:, None]
        of_tanh = ((stored + EXP_ROUNDOFFS * a.work) * mix * tanh) ** 2
        of_terms = (self.slope**2 * (e_k**2 + (stored * argument) ** 2) + of_tanh).sum(-1)
        norm = torch.sqrt(tanh**2 @ mix**2)
        self.own = torch.sqrt(of_terms + inner_products(len(mix), self.s, norm, a.work) ** 2)

    def errors(
        self, values: torch.Tensor, visible: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what output (heads, q_len, value_dim) and lse (heads, q_len) may be off by. bias: (heads, q_len,
        k_len), or None."""
        units = torch.eye(self.s.shape[-1], dtype=torch.float64).expand(len(self.s), -1, -1)
        rows = Rows.of(self.s, units, values, bias, visible, 1.0, self.arithmetic)
        rows = replace(rows, norm=torch.zeros_like(rows.norm), head_dim=0)  # the scores are given, no product is left
        ties = score_ties(rows)
        output = output_error(rows, ties)
        moved = torch.hypot(shared_term(rows, self.slope, self.e_q, rows.v), apart_term(rows, self.own, ties))
        output = output + CONFIDENCE * (1 + self.arithmetic.output) * rows.unit * moved
        own2 = ties.squeeze(-1) * ((rows.p * self.own) ** 2).sum(-1)
        shared = shared_term(rows, self.slope, self.e_q, None).squeeze(-1)
        lse = lse_error(rows, ties) + CONFIDENCE * torch.sqrt(own2 + shared**2)
        return output, torch.where(rows.count.squeeze(-1) > 0, lse, 0.0)
