"""Form `relative_bucket`: a function `(distance, *, num_buckets, max_distance, bidirectional)` that returns the buckets
of T5's relative position bias."""

from __future__ import annotations

from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, as_numbers, named, need, ran
from attnspec.golden.forms.relative_bucket import RelativeBucketProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.dtypes import FLOAT32

RULE = "relative-bias.bucket"
AXES: dict[str, tuple[str, ...]] = {"buckets": ("distance",)}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(distance, num_buckets=..., max_distance=..., bidirectional=...)` and return the buckets.

    distance: int32 (count,), position of the key minus that of the query. The buckets have any integer dtype. Raises
    NotSupported where the signature lacks a word or the target refuses by NotImplementedError, Violation where it
    raises anything else.
    """
    problem = cast(RelativeBucketProblem, golden.case.problem)
    distance = golden.inputs["distance"].clone()
    options: dict[str, Any] = {"num_buckets": problem.buckets, "max_distance": problem.max_distance}
    options["bidirectional"] = not problem.causal
    need(target, options)
    found = named(ran(RULE, target, distance, **options), ("buckets",), RULE)["buckets"]
    return {"buckets": as_numbers(found, tuple(distance.shape), "integer", RULE)}


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return 0 for each bucket. Raises InputError for an unknown class. Rule: `relative-bias.bucket`."""
    arithmetic_of(FLOAT32, accuracy)
    return {"buckets": torch.zeros_like(golden.truth["buckets"])}


REFUSALS = tuple(
    Refusal(f"relative-bucket-refuses-{slug}", "relative-bias.shape", case, what, instead(changed))
    for slug, case, what, changed in (
        ("an-odd-number", "relative-bucket-t5", "31 buckets are bidirectional", {"num_buckets": 31}),
        ("one-bucket-a-direction", "relative-bucket-t5", "2 buckets are bidirectional, 1 for a direction",
         {"num_buckets": 2}),
        ("a-single-bucket", "relative-bucket-t5-causal", "there is 1 bucket", {"num_buckets": 1}),
        ("a-short-max-distance", "relative-bucket-t5-causal", "max_distance is 16, the number of exact buckets",
         {"max_distance": 16}),
    )
)  # fmt: skip
