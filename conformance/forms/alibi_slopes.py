"""Form `alibi_slopes`: a function `(heads)` that returns the slopes of ALiBi, and how far they may be off."""

from __future__ import annotations

from typing import cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.target import Target, Tensors, as_numbers, named, ran
from attnspec.golden.forms.alibi_slopes import AlibiSlopesProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.dtypes import FLOAT32

RULE = "alibi.slopes"
AXES: dict[str, tuple[str, ...]] = {"slopes": ("head",)}
RELATIVE = 2.0**-16  # rule `alibi.slopes`


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(heads)` and return the slopes, (heads,), of any floating dtype.

    Raises NotSupported where the target refuses by NotImplementedError, Violation where it raises anything else.
    """
    heads = cast(AlibiSlopesProblem, golden.case.problem).heads
    slopes = named(ran(RULE, target, heads), ("slopes",), RULE)["slopes"]
    return {"slopes": as_numbers(slopes, (heads,), "floating", RULE)}


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each slope, 2^-16 of itself in either class. Raises InputError for an unknown class. Rule:
    `alibi.slopes`."""
    arithmetic_of(FLOAT32, accuracy)
    slopes: torch.Tensor = golden.truth["slopes"]
    return {"slopes": RELATIVE * slopes}
