"""Mistakes about the weights: the scale, the softmax, the lse."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.hiding import empty_lse
from attnspec.conformance.diagnosis.mistake import (
    DIM_MULTIPLES,
    TILES,
    Mistake,
    any_call,
    hiding_with_lse,
    scaled,
    with_lse,
)
from attnspec.conformance.diagnosis.steps import NoPrediction, Steps, default_scale
from attnspec.spec.call import Call

Scale = Callable[[Call], float]
LN2 = math.log(2)
PADDED = "the default scale is that of the padded head_dim"


def by_default(number: Callable[[Call], float]) -> Scale:
    """A default scale of 1 / sqrt(number); an explicit scale is used as it is."""
    return lambda call: 1 / math.sqrt(number(call)) if call.scale is None else call.scale


def padded(multiple: int) -> Steps:
    """The default scale of the head dimension, padded to a multiple."""
    return Steps(scale=by_default(lambda call: -(-call.query.shape[-1] // multiple) * multiple))


def inverted(call: Call) -> float:
    """1 / scale."""
    if call.scale == 0:
        raise NoPrediction
    return 1 / right.scale(call)


def root(call: Call) -> float:
    """sqrt(scale), NaN of a negative one."""
    scale = right.scale(call)
    return math.sqrt(scale) if scale >= 0 else math.nan


SCALE = (
    Mistake("scale-missing", "the scores are not scaled", any_call, Steps(scale=lambda call: 1.0)),
    Mistake("scale-missing", "the scores are not scaled", any_call, Steps(scale=by_default(lambda call: 1.0)),
            "by default"),
    Mistake("scale-twice", "the scale is applied twice", any_call, Steps(scale=lambda call: right.scale(call) ** 2)),
    Mistake("scale-without-root", "the default scale is 1/head_dim, without the square root", any_call,
            Steps(scale=by_default(lambda call: call.query.shape[-1] ** 2))),
    Mistake("scale-inverted", "the scores are divided by the scale", any_call, Steps(scale=inverted)),
    Mistake("scale-root", "the square root of the scale is applied once", any_call, Steps(scale=root)),
    Mistake("scale-split-by-root", "the scale is split as sqrt(scale) sqrt(scale): NaN where negative", scaled,
            Steps(scale=lambda call: root(call) * root(call))),
    *(Mistake("scale-of-padded-dim", PADDED, any_call,
              padded(multiple), f"a multiple of {multiple}") for multiple in DIM_MULTIPLES),
    Mistake("scale-of-padded-dim", PADDED, any_call,
            Steps(scale=by_default(lambda call: 2 ** (call.query.shape[-1] - 1).bit_length())), "a power of two"),
    Mistake("scale-of-value-dim", "the default scale is that of value_dim", any_call,
            Steps(scale=by_default(lambda call: call.value.shape[-1]))),
    Mistake("scale-of-all-heads", "the default scale is that of all heads together", any_call,
            Steps(scale=by_default(lambda call: call.query.shape[1] * call.query.shape[-1]))),
    Mistake("scale-of-length", "the default scale is that of a length", any_call,
            Steps(scale=by_default(lambda call: max(1, call.query.shape[2]))), "q_len"),
    Mistake("scale-of-length", "the default scale is that of a length", any_call,
            Steps(scale=by_default(lambda call: max(1, call.key.shape[2]))), "k_len"),
    Mistake("scale-absolute", "the absolute value of the scale is used", scaled,
            Steps(scale=lambda call: abs(right.scale(call)))),
    Mistake("scale-zero-is-default", "a scale of 0 is taken for none", scaled,
            Steps(scale=lambda call: call.scale or default_scale(call))),
    Mistake("scale-explicit-ignored", "an explicit scale is ignored", scaled, Steps(scale=default_scale)),
)  # fmt: skip


def top(scores: torch.Tensor) -> torch.Tensor:
    """The largest score of each row, (..., q_len, 1); 0 where there is none."""
    if scores.shape[-1] == 0:
        raise NoPrediction
    largest = scores.amax(-1, keepdim=True)
    return torch.where(largest == -torch.inf, 0.0, largest)


def total(scores: torch.Tensor) -> torch.Tensor:
    """The sum of exponentials with the maximum taken out, (..., q_len)."""
    return (scores - top(scores)).exp().sum(-1)


def peaks(scores: torch.Tensor) -> torch.Tensor:
    """The exponentials with the maximum taken out, not divided by their sum."""
    return (scores - top(scores)).exp()


def quotient(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole, 0 where the whole is."""
    return torch.where(whole == 0, 0.0, part / torch.where(whole == 0, 1.0, whole))


def base_2(scores: torch.Tensor) -> torch.Tensor:
    """Weights of 2^x, not e^x."""
    return right.weights(LN2 * scores)


def over(axis: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The softmax over another axis than the keys."""

    def weights(scores: torch.Tensor) -> torch.Tensor:
        moved = scores.transpose(axis, -1)
        return right.weights(moved).transpose(axis, -1)

    return weights


def above(floor: float | None, empty: float) -> Steps:
    """Exponentials in float32 with a maximum of at least `floor` taken out, or none; empty: a weight 0/0."""

    def shifted(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        taken = torch.zeros_like(top(scores)) if floor is None else top(scores).clamp_min(floor)
        return taken, (scores - taken).exp().float().double()

    def weights(scores: torch.Tensor) -> torch.Tensor:
        _, parts = shifted(scores)
        whole = parts.sum(-1, keepdim=True).float().double()
        return torch.where(whole == 0, empty, parts / whole)

    def lse(scores: torch.Tensor) -> torch.Tensor:
        taken, parts = shifted(scores)
        return taken.squeeze(-1) + parts.sum(-1).float().double().log()

    return Steps(weights=weights, lse=lse)


def running_top(scores: torch.Tensor, tile: int) -> torch.Tensor:
    """The maximum that a one-pass kernel knows when it takes each key, (..., q_len, k_len); 0 where there is none."""
    k_len = scores.shape[-1]
    if k_len == 0:
        raise NoPrediction
    whole = torch.nn.functional.pad(scores, (0, -k_len % tile), value=-torch.inf)
    tiles = whole.reshape(*scores.shape[:-1], -1, tile)
    known = tiles.amax(-1).cummax(-1).values.repeat_interleave(tile, -1)[..., :k_len]
    return torch.where(known == -torch.inf, 0.0, known)


def without_rescaling(tile: int, part: bool, whole: bool) -> Steps:
    """No rescaling when the running maximum grows: of the accumulator (part), of the sum (whole), or of both."""

    def once(scores: torch.Tensor) -> torch.Tensor:
        return (scores - running_top(scores, tile)).exp()

    def weights(scores: torch.Tensor) -> torch.Tensor:
        parts = once(scores) if part else peaks(scores)
        return quotient(parts, (once(scores) if whole else peaks(scores)).sum(-1, keepdim=True))

    def lse(scores: torch.Tensor) -> torch.Tensor:
        return top(scores).squeeze(-1) + (once(scores) if whole else peaks(scores)).sum(-1).log()

    return Steps(weights=weights, lse=lse)


UNSCALED = "what is summed so far is not rescaled when the maximum grows"
PARTS = (("the accumulator", True, False), ("the sum of weights", False, True), ("both", True, True))
FLOOR = "the maximum that is taken out is higher than that of the row, so that low scores vanish"
NO_TOP = "the maximum is not taken out, so that exponentials leave the range of float32"


SOFTMAX = (
    *(Mistake("softmax-base-2", "the weights are powers of 2, not of e", any_call, Steps(weights=base_2, lse=lse), form)
      for form, lse in (("", lambda z: right.lse(LN2 * z) / LN2),
                        ("natural log", lambda z: top(z).squeeze(-1) + peaks(LN2 * z).sum(-1).log()))),
    Mistake("softmax-unnormalised", "the weights are not divided by their sum", any_call, Steps(weights=peaks)),
    Mistake("softmax-over-queries", "the softmax runs over the queries, not the keys", any_call,
            Steps(weights=over(-2))),
    Mistake("softmax-over-heads", "the softmax runs over the heads, not the keys", any_call, Steps(weights=over(1))),
    *(Mistake("rescale-missing", UNSCALED, any_call, without_rescaling(tile, part, whole), f"{what}, tiles of {tile}")
      for tile in (1, *TILES) for what, part, whole in PARTS),
    *(Mistake("maximum-too-high", FLOOR, any_call, above(floor, empty), f"{floor:g}, a lost row gives {empty:g}")
      for floor in (0.0, -1e4) for empty in (0.0, math.nan)),
    *(Mistake("maximum-not-taken-out", NO_TOP, any_call, above(None, empty), f"a lost row gives {empty:g}")
      for empty in (0.0, math.nan)),
)  # fmt: skip

EMPTY_LSES = {"0": 0.0, "+inf": math.inf, "NaN": math.nan, "the lowest float32": -3.4028234663852886e38} | {
    f"{low:g}": low for low in (-1e4, -1e9, -1e10, -1e30, -1e38)
}
MIXED = "the maximum and the logarithm of the sum are in different bases"

LSE = (
    Mistake("lse-base-2", "the lse is the logarithm to base 2", with_lse, Steps(lse=lambda z: right.lse(z) / LN2)),
    Mistake("lse-base-e", "the lse is the natural logarithm, and base 2 is declared", with_lse,
            Steps(lse=lambda z: right.lse(z) * LN2)),
    Mistake("lse-mixed-bases", MIXED, with_lse, Steps(lse=lambda z: top(z).squeeze(-1) / LN2 + total(z).log()),
            "maximum in base 2"),
    Mistake("lse-mixed-bases", MIXED, with_lse, Steps(lse=lambda z: top(z).squeeze(-1) + total(z).log2()),
            "sum in base 2"),
    Mistake("lse-without-maximum", "the maximum is not added back to the lse", with_lse,
            Steps(lse=lambda z: total(z).log())),
    Mistake("lse-is-maximum", "the lse is the maximum alone", with_lse,
            Steps(lse=lambda z: torch.where((z == -torch.inf).all(-1), -torch.inf, top(z).squeeze(-1)))),
    Mistake("lse-is-sum", "the lse is the sum, without the logarithm and the maximum", with_lse, Steps(lse=total)),
    Mistake("lse-negated", "the lse has the wrong sign", with_lse, Steps(lse=lambda z: -right.lse(z))),
    *(Mistake("lse-of-empty-row", "the lse of a row that sees no key is not -inf", hiding_with_lse,
              Steps(lse=empty_lse(low)), form) for form, low in EMPTY_LSES.items()),
)  # fmt: skip

WEIGHING = (*SCALE, *SOFTMAX, *LSE)
