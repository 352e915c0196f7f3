"""Mistakes about ALiBi."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import Mistake, sloped, sloped_groups
from attnspec.conformance.diagnosis.steps import Shape, Steps
from attnspec.spec.call import Call

OTHER = {"symmetric": "signed", "signed": "symmetric", "upper_left": "lower_right", "lower_right": "upper_left"}
WORDS = {"upper_left": "upper left", "lower_right": "lower right"}


def measured_from(corner: str) -> Callable[[Call], bool]:
    """Whether a call has slopes whose distances are measured from a corner."""
    return lambda call: sloped(call) and call.alibi_alignment == corner


def times(call: Call, shape: Shape, factor: float) -> torch.Tensor | float:
    """The bias times a factor."""
    return factor * right.position(call, shape)


def of_heads(call: Call, shape: Shape, heads: torch.Tensor) -> torch.Tensor | float:
    """The bias with the slopes of other heads, one for each query head."""
    assert call.alibi_slopes is not None, "a call with slopes"
    return right.position(call.but(alibi_slopes=call.alibi_slopes[..., heads]), shape)


def key_head(call: Call) -> torch.Tensor:
    """The number of the key head that each query head reads."""
    return torch.arange(call.query.shape[1]) // (call.query.shape[1] // call.key.shape[1])


SLOPES = (
    Mistake("alibi-dropped", "alibi_slopes are ignored", sloped, Steps(position=lambda call, shape: 0.0)),
    Mistake("alibi-negated", "the bias of ALiBi is added with the wrong sign", sloped,
            Steps(position=lambda call, shape: times(call, shape, -1.0))),
    Mistake("alibi-scaled", "the bias of ALiBi is multiplied by the scale", sloped,
            Steps(position=lambda call, shape: times(call, shape, right.scale(call)))),
    Mistake("alibi-other-form", "beyond the diagonal the distance has the other form, signed or symmetric", sloped,
            Steps(position=lambda call, shape: right.position(call.but(alibi_form=OTHER[call.alibi_form]), shape))),
    *(Mistake("alibi-other-corner", f"alibi is measured from {WORDS[OTHER[declared]]}",
              measured_from(declared), Steps(position=lambda call, shape: right.position(
                  call.but(alibi_alignment=OTHER[call.alibi_alignment]), shape)), f"declared {WORDS[declared]}")
      for declared in WORDS),
    Mistake("alibi-of-head-0", "the slope of head 0 serves all", sloped,
            Steps(position=lambda call, shape: of_heads(call, shape, torch.zeros(shape[1], dtype=torch.int64)))),
    Mistake("alibi-of-key-head", "query head i takes the slope numbered by its key head", sloped_groups,
            Steps(position=lambda call, shape: of_heads(call, shape, key_head(call)))),
    Mistake("alibi-heads-reversed", "the slopes are those of the heads from last to first", sloped,
            Steps(position=lambda call, shape: of_heads(call, shape, torch.arange(shape[1] - 1, -1, -1)))),
)  # fmt: skip
