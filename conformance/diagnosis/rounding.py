"""Mistakes of precision: what passes through a format that is too narrow for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import TILES, Mistake, any_call, with_lse
from attnspec.conformance.diagnosis.steps import Steps
from attnspec.conformance.diagnosis.weighing import peaks, quotient, running_top
from attnspec.spec.call import Call

BF16, F16, F8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
NAMES = {BF16: "bfloat16", F16: "float16", F8: "float8"}

Weights = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 numbers, rounded to float32 and then to a narrower format."""
    return x.float().to(dtype).double()


def of_scores(dtype: torch.dtype, product: bool, scaled: bool) -> Steps:
    """Scores that are stored: the product q k (product), and once scaled (scaled)."""

    def scores(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        found = query @ key.transpose(-1, -2)
        found = scale * (rounded(found, dtype) if product else found)
        return rounded(found, dtype) if scaled else found

    return Steps(scores=scores)


def of_biased_scores(dtype: torch.dtype) -> Steps:
    """Scores that are stored with the bias added."""
    return Steps(hide=lambda scores, visible: right.hide(rounded(scores, dtype), visible))


def of_scaled_query(dtype: torch.dtype) -> Steps:
    """A query that is scaled and stored, then scores that are stored."""

    def scores(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return rounded(rounded(scale * query, dtype) @ key.transpose(-1, -2), dtype)

    return Steps(scores=scores)


def normalised(scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weights, rounded after the division by their sum."""
    return rounded(right.weights(scores), dtype)


def unnormalised(scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weights, rounded before the division by the sum of the unrounded ones."""
    return quotient(rounded(peaks(scores), dtype), peaks(scores).sum(-1, keepdim=True))


def summed(scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Weights, rounded before they are summed."""
    parts = rounded(peaks(scores), dtype)
    return quotient(parts, parts.sum(-1, keepdim=True))


def one_pass(tile: int) -> Weights:
    """Weights, rounded by a one-pass kernel: with the maximum known so far taken out."""

    def weights(scores: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        known = running_top(scores, tile)
        parts = rounded((scores - known).exp(), dtype) * (known - known[..., -1:]).exp()
        return quotient(parts, peaks(scores).sum(-1, keepdim=True))

    return weights


def of_weights(dtype: torch.dtype, weights: Weights) -> Steps:
    """Weights that are stored."""
    return Steps(weights=lambda scores: weights(scores, dtype))


def of_inputs(dtype: torch.dtype, names: tuple[str, ...]) -> Steps:
    """Inputs that are stored."""
    return Steps(inputs=lambda call: narrowed(call, dtype, names))


def narrowed(call: Call, dtype: torch.dtype, names: tuple[str, ...]) -> Call:
    """The call with some tensors rounded."""
    return call.but(**{name: rounded(getattr(call, name), dtype) for name in names})


def of_sums(dtype: torch.dtype, tile: int) -> Steps:
    """A sum of weights times values that is stored after each tile."""

    def output(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((*weights.shape[:-1], value.shape[-1]), dtype=torch.float64)
        for start in range(0, value.shape[-2], tile):
            part, keys = weights[..., start : start + tile], value[..., start : start + tile, :]
            total = rounded(total + rounded(part @ keys, dtype), dtype)
        return total

    return Steps(output=output)


def of_output(dtype: torch.dtype) -> Steps:
    """An output that is stored."""
    return Steps(output=lambda weights, value: rounded(right.output(weights, value), dtype))


def of_lse(dtype: torch.dtype) -> Steps:
    """An lse that is stored."""
    return Steps(lse=lambda scores: rounded(right.lse(scores), dtype))


SCORES = {"scaled": (False, True), "before the scale": (True, False), "before and after the scale": (True, True)}
WEIGHTS: dict[str, Weights] = {
    "normalised": normalised,
    "not yet normalised": unnormalised,
    "before they are summed": summed,
} | {f"one pass, tiles of {tile}": one_pass(tile) for tile in TILES}
INPUTS = {"": ("query", "key", "value"), "queries and keys": ("query", "key"), "values": ("value",)}


def stored(what: str, verb: str, dtype: torch.dtype, form: str, steps: Steps) -> Mistake:
    """The mistake `what-in-dtype`."""
    name = NAMES[dtype]
    needs = with_lse if what == "lse" else any_call
    return Mistake(f"{what}-in-{name}", f"the {what} {verb} stored in {name}", needs, steps, form, rounds=True)


ROUNDING = (
    *(stored("scores", "are", dtype, form, of_scores(dtype, *where)) for dtype in (BF16, F16)
      for form, where in SCORES.items()),
    *(stored("scores", "are", dtype, "bias included", of_biased_scores(dtype)) for dtype in (BF16, F16)),
    *(stored("scores", "are", dtype, "query scaled first", of_scaled_query(dtype)) for dtype in (BF16, F16)),
    *(stored("weights", "are", dtype, form, of_weights(dtype, weights)) for dtype in (BF16, F16, F8)
      for form, weights in WEIGHTS.items()),
    *(stored("inputs", "are", dtype, form, of_inputs(dtype, names)) for dtype in (BF16, F16)
      for form, names in INPUTS.items()),
    *(stored("output", "is", dtype, "", of_output(dtype)) for dtype in (BF16, F16)),
    *(stored("sum", "of weights times values is", dtype, f"tiles of {tile}", of_sums(dtype, tile))
      for dtype in (BF16, F16) for tile in TILES),
    *(stored("lse", "is", dtype, "", of_lse(dtype))
      for dtype in (BF16, F16)),
)  # fmt: skip
