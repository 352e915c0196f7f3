"""Form `alibi_bias`: a function `(alibi_slopes, q_len, k_len, *, form, ...)` that returns the bias of ALiBi, and its
budget (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, as_numbers, named, need, ran
from attnspec.golden.forms.alibi_bias import AlibiBiasProblem
from attnspec.golden.store import FormGolden
from attnspec.reference import lengths
from attnspec.spec.dtypes import format_of

RULE = "alibi.bias"
AXES: dict[str, tuple[str, ...]] = {"bias": ("batch", "head", "row", "key")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(alibi_slopes, q_len, k_len)`, with form="signed", alignment="lower_right" and key_lengths where the
    case has them.

    It returns the bias, of any floating dtype, in a shape that broadcasts to (batch, heads, q_len, k_len); what it
    holds for keys that do not exist is free. Raises NotSupported where the signature lacks a word or the target refuses
    by NotImplementedError, Violation where it raises anything else.
    """
    problem = cast(AlibiBiasProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options: dict[str, Any] = {}
    if problem.side == "signed":
        options["form"] = problem.side
    if problem.corner == "lower_right":
        options["alignment"] = problem.corner
    if "key_lengths" in inputs:
        options["key_lengths"] = inputs["key_lengths"]
    need(target, options)
    returned = ran(RULE, target, inputs["alibi_slopes"], problem.q, problem.k, **options)
    shape = (problem.b, problem.h, problem.q, problem.k)
    bias = as_numbers(named(returned, ("bias",), RULE)["bias"], shape, "floating", RULE)
    if problem.lengths != "none":
        bias = torch.where(lengths.visible(shape, golden.inputs["key_lengths"]), bias, 0.0)
    return {"bias": bias}


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of the bias, float64 (batch, heads, q_len, k_len), the same in either class:
    one rounding of the product, in float32, float64 for slopes of float64. Raises InputError for an unknown class.
    Rule: `alibi.bias`."""
    a = arithmetic_of(format_of(golden.inputs["alibi_slopes"].dtype), accuracy)
    return {"bias": a.work * golden.truth["bias"].abs()}


SQUARE, OF_BATCH = "alibi-bias-square-float32", "alibi-bias-of-batch-lengths-float32"
REFUSALS = (
    Refusal("alibi-bias-refuses-integer-slopes", "alibi.shape", SQUARE, "the slopes are integers",
            instead({0: torch.ones(4, dtype=torch.int32)})),
    Refusal("alibi-bias-refuses-slopes-of-three-dimensions", "alibi.shape", SQUARE, "the slopes have shape (1, 4, 1)",
            lambda sound: {0: sound[0][None, :, None]}),
    Refusal("alibi-bias-refuses-another-batch", "alibi.shape", OF_BATCH, "the slopes have batch 2, the key lengths 3",
            lambda sound: {0: sound[0][:2]}),
)  # fmt: skip
