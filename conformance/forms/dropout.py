"""Form `dropout`: a function `(query, key, value, *, keep, dropout_p, ...)` that drops the weights that a mask names.

Its budget is that of attention with values of a row's own (`attnspec.conformance.dropout_budget`).
"""

from __future__ import annotations

from typing import cast

from attnspec.conformance.budget import error_budget
from attnspec.conformance.dropout_budget import dropout_budget, dropout_gradient_budget
from attnspec.conformance.forms.target import Target, Tensors, there_and_back
from attnspec.golden.forms.dropout import DropoutProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.call import Call

RULE = "accuracy.output-within-budget"
GRADIENT = "dropout.backward-mask"
ROWS = ("batch", "head", "row")
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, "column"), "lse": ROWS, "grad_query": (*ROWS, "column")}
AXES |= dict.fromkeys(("grad_key", "grad_value"), ("batch", "head", "key", "column"))
LEAVES = ("query", "key", "value")


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key, value, keep=..., dropout_p=..., ...)` and return output, lse and gradients.

    keep: bool (batch, q_heads, q_len, k_len), True where a weight stays; attn_mask, is_causal, scale and enable_gqa
    are given where the case has them. It returns the output, or (output, lse); gradients are asked for through
    autograd. Raises NotSupported where the signature lacks a word, where it refuses by NotImplementedError and where
    no gradient comes back, Violation where it raises anything else.
    """
    problem = cast(DropoutProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options = {name: value for name, value in problem.options.items() if name != "causal_alignment" and value}
    options |= {"keep": inputs["keep"], "dropout_p": problem.dropout_p}
    if "attn_mask" in inputs:
        options["attn_mask"] = inputs["attn_mask"]
    given = [inputs[name] for name in LEAVES]
    return there_and_back(target, inputs, LEAVES, given, options, RULE, GRADIENT)


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of what `run` returns, float64. Raises InputError for an unknown class."""
    problem, inputs = cast(DropoutProblem, golden.case.problem), golden.inputs
    corner = problem.options["causal_alignment"]
    call = Call(
        query=inputs["query"],
        key=inputs["key"],
        value=inputs["value"],
        attn_mask=inputs.get("attn_mask"),
        dropout_p=problem.dropout_p,
        is_causal=problem.options["is_causal"],
        scale=problem.options["scale"],
        enable_gqa=problem.options["enable_gqa"],
        grad_output=inputs.get("grad_output"),
        grad_lse=inputs.get("grad_lse"),
    )
    found = {
        "output": dropout_budget(call, inputs["keep"], causal_alignment=corner, accuracy=accuracy),
        "lse": error_budget(call, causal_alignment=corner, accuracy=accuracy).lse,
    }
    if call.grad_output is not None:
        given = dropout_gradient_budget(call, inputs["keep"], causal_alignment=corner, accuracy=accuracy)
        found |= {f"grad_{name}": getattr(given, name) for name in LEAVES}
    return found
