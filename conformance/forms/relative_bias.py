"""Form `relative_bias`: a function `(table, q_len, k_len, *, max_distance, bidirectional, alignment)` that returns the
relative position bias of T5. The budget of the table's gradient is that of a sum (chapter "accuracy", "Budgets of the
forms")."""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, as_numbers, gradients, named, need, ran
from attnspec.conformance.row_errors import CONFIDENCE
from attnspec.conformance.rows import Arithmetic
from attnspec.golden.forms.relative_bias import RelativeBiasProblem
from attnspec.golden.store import FormGolden
from attnspec.reference.relative_bias import buckets_of_slots
from attnspec.spec.dtypes import format_of

RULE = "relative-bias.head"
GRADIENT = "relative-bias.gradient"
AXES: dict[str, tuple[str, ...]] = {"bias": ("batch", "head", "row", "key"), "grad_table": ("bucket", "head")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(table, q_len, k_len, max_distance=..., bidirectional=...)`, with alignment="lower_right" where the
    case has it, and return the bias and the gradient of the table.

    table: (num_buckets, heads). The bias has the table's dtype and a shape that broadcasts to (1, heads, q_len, k_len);
    the gradient is asked for through autograd. Raises NotSupported where the signature lacks a word, where the target
    refuses by NotImplementedError and where no gradient comes back, Violation where it raises anything else.
    """
    problem = cast(RelativeBiasProblem, golden.case.problem)
    flow = golden.inputs.get("grad_bias")
    table = golden.inputs["table"].clone().requires_grad_(flow is not None)
    options: dict[str, Any] = {"max_distance": problem.max_distance, "bidirectional": not problem.causal}
    if problem.corner == "lower_right":
        options["alignment"] = problem.corner
    need(target, options)
    with torch.set_grad_enabled(flow is not None):
        returned = ran(RULE, target, table, problem.q, problem.k, **options)
    bias = named(returned, ("bias",), RULE)["bias"]
    whole = as_numbers(bias.detach(), (1, problem.h, problem.q, problem.k), "floating", RULE)
    found = {"bias": whole.to(bias.dtype)}
    if flow is not None:
        of_bias = {"bias": bias.broadcast_to(whole.shape)}
        found |= gradients(GRADIENT, of_bias, {"table": table}, [flow.to(bias.dtype)], ("bias",))
    return found


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of what `run` returns, float64: 0 for the bias, whose numbers are copied, that
    of a sum for the gradient of the table. Raises InputError for an unknown class. Rules: `relative-bias.head`,
    `relative-bias.gradient`."""
    problem = cast(RelativeBiasProblem, golden.case.problem)
    arithmetic = arithmetic_of(format_of(golden.inputs["table"].dtype), accuracy)
    found = {"bias": torch.zeros_like(golden.truth["bias"])}
    if problem.grad:
        size = problem.buckets, problem.q, problem.k, problem.max_distance
        places = buckets_of_slots(*size, not problem.causal, problem.corner)
        flow = golden.inputs["grad_bias"][0].double()
        budget = [
            [sum_budget(of_head[places == entry], arithmetic) for of_head in flow] for entry in range(problem.buckets)
        ]
        found["grad_table"] = torch.tensor(budget, dtype=torch.float64)
    return found


def sum_budget(terms: torch.Tensor, a: Arithmetic) -> float:
    """Return the budget of the stored sum of some numbers, (n,) float64 of the storage dtype; 0 where none or one is
    copied. Chapter "accuracy", equation (15)."""
    n = len(terms)
    if n < 2:
        return 0.0
    ties = int(torch.unique(terms, return_counts=True)[1].max())
    path = max(float(terms.clamp_min(0.0).sum()), -float(terms.clamp_max(0.0).sum()))
    error = max(a.work, a.scores) * min(CONFIDENCE * math.sqrt(ties * (n - 1)), n - 1) * path
    return error + a.output * (abs(float(terms.sum())) + error) + a.tiny


REFUSALS = (
    Refusal("relative-bias-refuses-an-odd-table", "relative-bias.shape", "relative-bias-square-float32",
            "a table of 7 buckets is bidirectional", lambda sound: {0: sound[0][:7]}),
    Refusal("relative-bias-refuses-a-short-max-distance", "relative-bias.shape", "relative-bias-square-causal-float32",
            "max_distance is 4, the number of exact buckets", instead({"max_distance": 4})),
)  # fmt: skip
