"""Mistakes about sinks."""

from __future__ import annotations

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import Mistake, sinking, sinking_groups, sinking_with_lse
from attnspec.conformance.diagnosis.steps import Steps, beside
from attnspec.spec.call import Call


def dropped(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """No sink."""
    return scores


def twice(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """The sink as two keys."""
    return right.sink(call, right.sink(call, scores))


def scaled(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """The sink in the unit of scores that are not scaled yet."""
    return beside(scores, of(call) * right.scale(call))


def of_head_0(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """One sink for all heads."""
    return beside(scores, of(call)[:1].expand(call.query.shape[1]))


def of_key_head(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """The sink that has the number of the key head."""
    heads = torch.arange(call.query.shape[1])
    return beside(scores, of(call)[heads // (call.query.shape[1] // call.key.shape[1])])


def negated(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """The sink with the wrong sign."""
    return beside(scores, -of(call))


def of(call: Call) -> torch.Tensor:
    """The sinks of a call that has them, float64."""
    assert call.sinks is not None, "a call with sinks"
    return call.sinks.double()


SINKING = (
    Mistake("sink-dropped", "the sinks are ignored", sinking, Steps(sink=dropped)),
    Mistake("sink-twice", "the sink is counted twice", sinking, Steps(sink=twice)),
    Mistake("sink-scaled", "the sink is multiplied by the scale", sinking, Steps(sink=scaled)),
    Mistake("sink-of-head-0", "the sink of head 0 serves all", sinking, Steps(sink=of_head_0)),
    Mistake("sink-of-key-head", "query head i takes the sink numbered by its key head", sinking_groups,
            Steps(sink=of_key_head)),
    Mistake("sink-negated", "the sink has the wrong sign", sinking, Steps(sink=negated)),
    Mistake("sink-not-in-lse", "the lse leaves the sink out", sinking_with_lse,
            Steps(lse=lambda scores: right.lse(scores[..., :-1]))),
)  # fmt: skip
