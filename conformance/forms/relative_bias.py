"""Form `relative_bias`: a function `(table, q_len, k_len, *, max_distance, bidirectional, alignment)` that returns the
relative position bias of T5."""

from __future__ import annotations

from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, as_numbers, named, need, ran
from attnspec.golden.forms.relative_bias import RelativeBiasProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.dtypes import FLOAT32

RULE = "relative-bias.head"
AXES: dict[str, tuple[str, ...]] = {"bias": ("batch", "head", "row", "key")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(table, q_len, k_len, max_distance=..., bidirectional=...)`, with alignment="lower_right" where the
    case has it, and return the bias.

    table: (num_buckets, heads). The bias has the table's dtype and a shape that broadcasts to (1, heads, q_len, k_len).
    Raises NotSupported where the signature lacks a word or the target refuses by NotImplementedError, Violation where
    it raises anything else.
    """
    problem = cast(RelativeBiasProblem, golden.case.problem)
    table = golden.inputs["table"].clone()
    options: dict[str, Any] = {"max_distance": problem.max_distance, "bidirectional": not problem.causal}
    if problem.corner == "lower_right":
        options["alignment"] = problem.corner
    need(target, options)
    with torch.no_grad():
        returned = ran(RULE, target, table, problem.q, problem.k, **options)
    bias = named(returned, ("bias",), RULE)["bias"]
    whole = as_numbers(bias, (1, problem.h, problem.q, problem.k), "floating", RULE)
    return {"bias": whole.to(bias.dtype)}


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return 0 for each element: the numbers of the table are copied. Raises InputError for an unknown class. Rule:
    `relative-bias.head`."""
    arithmetic_of(FLOAT32, accuracy)
    return {"bias": torch.zeros_like(golden.truth["bias"])}


REFUSALS = (
    Refusal("relative-bias-refuses-an-odd-table", "relative-bias.shape", "relative-bias-square-float32",
            "a table of 7 buckets is bidirectional", lambda sound: {0: sound[0][:7]}),
    Refusal("relative-bias-refuses-a-short-max-distance", "relative-bias.shape", "relative-bias-square-causal-float32",
            "max_distance is 4, the number of exact buckets", instead({"max_distance": 4})),
)  # fmt: skip
