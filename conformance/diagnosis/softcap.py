"""Mistakes about the softcap: where it stands, its unit, and whether it is there."""

from __future__ import annotations

import math

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import Mistake, capped, capped_and_biased, capped_with_lse
from attnspec.conformance.diagnosis.steps import NoPrediction, Steps

LN2 = math.log(2)


def none(scores: torch.Tensor, softcap: float, scale: float) -> torch.Tensor:
    """No cap."""
    return scores


def before_scale(scores: torch.Tensor, softcap: float, scale: float) -> torch.Tensor:
    """A cap on q.k, which is scaled after it."""
    if scale == 0:
        raise NoPrediction
    return scale * right.cap(scores / scale, softcap, scale)


def in_base_2(scores: torch.Tensor, softcap: float, scale: float) -> torch.Tensor:
    """A cap on the scores of a softmax in base 2."""
    return right.cap(scores, LN2 * softcap, scale)


def clamped(scores: torch.Tensor, softcap: float, scale: float) -> torch.Tensor:
    """A hard cap."""
    return scores.clamp(-softcap, softcap)


def unmultiplied(scores: torch.Tensor, softcap: float, scale: float) -> torch.Tensor:
    """tanh(s / c), which stays between -1 and 1."""
    return right.cap(scores, softcap, scale) / softcap


def late(scores: torch.Tensor, softcap: float) -> torch.Tensor:
    """The cap of score and bias together."""
    return right.cap(scores, softcap, 1.0)


SOFTCAP = (
    Mistake("softcap-dropped", "softcap is ignored", capped, Steps(cap=none)),
    Mistake("softcap-after-bias", "the cap is taken of score and bias together", capped_and_biased,
            Steps(cap=none, cap_all=late)),
    Mistake("softcap-before-scale", "the cap is on q.k, before the scale", capped, Steps(cap=before_scale)),
    Mistake("softcap-in-base-2", "the cap is on the scores of base 2, log2 e larger", capped, Steps(cap=in_base_2)),
    Mistake("softcap-by-clamping", "the scores are clamped, not capped by a tanh", capped, Steps(cap=clamped)),
    Mistake("softcap-not-multiplied-back", "the tanh is not multiplied by the cap", capped, Steps(cap=unmultiplied)),
    Mistake("softcap-missing-from-lse", "the lse is that of the scores without the cap", capped_with_lse,
            Steps(lse_of_scaled=True)),
)  # fmt: skip
