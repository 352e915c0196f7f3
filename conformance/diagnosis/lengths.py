"""Mistakes about key_lengths: which keys exist, and where the lower right corner is."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import Mistake, causal, lengthed, windowed
from attnspec.conformance.diagnosis.steps import Steps
from attnspec.spec.call import Call


def changed(lengths: Callable[[torch.Tensor], torch.Tensor]) -> Steps:
    """Other lengths than the ones given."""

    def exist(call: Call, k_len: int) -> torch.Tensor:
        assert call.key_lengths is not None, "a call with key_lengths"
        return right.exist(call.but(key_lengths=lengths(call.key_lengths)), k_len)

    return Steps(exist=exist)


def of_storage(call: Call, corner: str) -> torch.Tensor:
    """The corner of the whole memory."""
    return right.diagonal(call.but(key_lengths=None), corner)


def with_diagonal(call: Call) -> bool:
    """The call has key_lengths, and a diagonal."""
    return lengthed(call) and (causal(call) or windowed(call))


LENGTHS = (
    Mistake("lengths-ignored", "key_lengths are ignored: keys that do not exist take part", lengthed,
            Steps(exist=lambda call, k_len: right.exist(call.but(key_lengths=None), k_len))),
    Mistake("lengths-of-batch-0", "the length of batch element 0 serves all", lengthed,
            changed(lambda lengths: lengths[:1].expand_as(lengths))),
    Mistake("lengths-one-short", "the last key that exists is dropped", lengthed, changed(lambda lengths: lengths - 1)),
    Mistake("lengths-one-long", "one key beyond the last that exists takes part", lengthed,
            changed(lambda lengths: lengths + 1)),
    Mistake("lengths-corner-of-storage", "the lower right corner is at the end of the memory, not at the last key",
            with_diagonal, Steps(diagonal=of_storage, window_diagonal=of_storage)),
)  # fmt: skip
