"""Form `prefix_lm`: a function `(q_len, k_len, prefix_lengths, *, causal_alignment)` that returns the mask of a prefix
language model."""

from __future__ import annotations

from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, as_numbers, named, need, ran
from attnspec.golden.forms.prefix_lm import PrefixLmProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.dtypes import FLOAT32

RULE = "prefix-lm.visible"
AXES: dict[str, tuple[str, ...]] = {"visible": ("batch", "head", "row", "key")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(q_len, k_len, prefix_lengths)`, with causal_alignment="lower_right" where the case has it, and give
    the mask.

    prefix_lengths: int32 (batch,). The mask is bool, True where a slot takes part, of a shape that broadcasts to
    (batch, 1, q_len, k_len). Raises NotSupported where the signature lacks a word or the target refuses by
    NotImplementedError, Violation where it raises anything else.
    """
    problem = cast(PrefixLmProblem, golden.case.problem)
    options: dict[str, Any] = {"causal_alignment": problem.corner} if problem.corner == "lower_right" else {}
    need(target, options)
    returned = ran(RULE, target, problem.q, problem.k, golden.inputs["prefix_lengths"].clone(), **options)
    mask = named(returned, ("visible",), RULE)["visible"]
    return {"visible": as_numbers(mask, (problem.b, 1, problem.q, problem.k), "bool", RULE)}


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return 0 for each slot. Raises InputError for an unknown class. Rule: `prefix-lm.visible`."""
    arithmetic_of(FLOAT32, accuracy)
    return {"visible": torch.zeros_like(golden.truth["visible"])}


REFUSALS = tuple(
    Refusal(f"prefix-lm-refuses-{slug}", "prefix-lm.visible", "prefix-lm-square", what,
            instead({2: torch.tensor(lengths, dtype=torch.int32)}))
    for slug, lengths, what in (
        ("a-length-beyond-the-keys", [8, 1, 2, 3], "a length is 8 of 7 keys"),
        ("a-length-below-0", [0, 1, -1, 3], "a length is -1"),
    )
)  # fmt: skip
