"""Form `quantise`: a function `(x, scale, dtype)` that makes keys or values 8-bit numbers (chapter "quantised")."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, named, ran
from attnspec.conformance.outcome import Violation
from attnspec.golden.forms.quantise import QuantiseProblem, stored_number
from attnspec.golden.store import FormGolden
from attnspec.spec.dtypes import format_of

RULE = "quantised.rounding"
AXES: dict[str, tuple[str, ...]] = {"output": ("batch", "head", "key", "column")}
QUOTIENT = Fraction(1, 2**22)  # relative error of a float32 quotient: a reciprocal of 1 ulp, a product, their sum


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(x, scale, dtype)` and return the stored numbers, in the dtype of x, which holds them exactly.

    x: (batch, heads, length, dim), stored as `key`; scale: float32, of the shapes in chapter "quantised"; dtype:
    torch.int8 or torch.float8_e4m3fn. Raises NotSupported where the target refuses by NotImplementedError, Violation
    where it raises anything else or returns another dtype.
    """
    problem, inputs = cast(QuantiseProblem, golden.case.problem), golden.inputs
    with torch.no_grad():
        returned = ran(RULE, target, inputs["key"].clone(), inputs["key_scale"].clone(), problem.stored_dtype)
    stored = named(returned, ("output",), RULE)["output"]
    if stored.dtype != problem.stored_dtype:
        raise Violation(RULE, f"output is {stored.dtype}, should be {problem.stored_dtype}")
    return {"output": stored.to(inputs["key"].dtype)}


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return how far each stored number may be off, float64: 0, or one step where a quotient in float32 may fall on the
    other side of a rounding boundary. A power of two divides exactly. Raises InputError for an unknown class. Rule:
    `quantised.rounding`."""
    arithmetic_of(format_of(golden.inputs["key"].dtype), accuracy)
    problem, key = cast(QuantiseProblem, golden.case.problem), golden.inputs["key"].double()
    scale = golden.inputs["key_scale"].double().expand(key.shape)
    pairs = zip(key.flatten().tolist(), scale.flatten().tolist(), strict=True)
    steps = [_reach(Fraction(x) / Fraction(s), s, problem.stored) for x, s in pairs]
    return {"output": torch.tensor(steps, dtype=torch.float64).reshape(key.shape)}


def _reach(quotient: Fraction, scale: float, stored: str) -> float:
    """Return the distance from what a quotient becomes to what one as far off as QUOTIENT does."""
    if math.frexp(scale)[0] == 0.5:  # a power of two
        return 0.0
    right = stored_number(quotient, stored)
    near = (stored_number(quotient * (1 + sign * QUOTIENT), stored) for sign in (-1, 1))
    return max(abs(number - right) for number in near)


SOUND = "quantise-int8-float32"
SCALE, DTYPE = 1, 2
REFUSALS = tuple(
    Refusal(f"quantise-refuses-{slug}", "quantised.scale-shape", SOUND, what, change)
    for slug, what, change in (
        ("scale-of-channels", "scale has one dimension, that of the channels",
         lambda sound: {SCALE: torch.ones(sound[0].shape[3])}),
        ("scale-of-heads", "scale has three dimensions, (heads, 1, 1)",
         lambda sound: {SCALE: torch.ones(sound[0].shape[1], 1, 1)}),
        ("integer-scale", "scale is int32", instead({SCALE: torch.tensor(1, dtype=torch.int32)})),
        ("int16", "dtype is int16", instead({DTYPE: torch.int16})),
    )
)  # fmt: skip
