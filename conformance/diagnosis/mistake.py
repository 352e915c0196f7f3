"""A known mistake: its name, what it is in a sentence, and the steps that it replaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnspec.conformance.diagnosis.steps import Steps, attend
from attnspec.spec.call import Call

TILES = (16, 32, 64, 128)  # of keys or rows: what kernels are written with
DIM_MULTIPLES = (8, 16, 32, 64)  # that kernels pad or cut a head dimension to
Numbers = dict[str, torch.Tensor]  # float64, by the name of the result or gradient


def any_call(call: Call) -> bool:
    """Every call shows the mistake."""
    return True


def causal(call: Call) -> bool:
    """The call is causal."""
    return call.is_causal


def masked(call: Call) -> bool:
    """The call has an `attn_mask`."""
    return call.attn_mask is not None


def bool_masked(call: Call) -> bool:
    """The call has a boolean `attn_mask`."""
    return call.attn_mask is not None and call.attn_mask.dtype == torch.bool


def biased(call: Call) -> bool:
    """The call has an additive `attn_mask`."""
    return masked(call) and not bool_masked(call)


def causal_and_masked(call: Call) -> bool:
    """The call is causal and has an `attn_mask`."""
    return causal(call) and masked(call)


def windowed(call: Call) -> bool:
    """The call has a window."""
    return call.window_size is not None


def causal_and_windowed(call: Call) -> bool:
    """The call is causal and has a window."""
    return causal(call) and windowed(call)


def capped(call: Call) -> bool:
    """The call has a softcap."""
    return bool(call.softcap)


def capped_and_biased(call: Call) -> bool:
    """The call has a softcap and an additive `attn_mask`."""
    return capped(call) and biased(call)


def capped_with_lse(call: Call) -> bool:
    """The call has a softcap and asks for the lse."""
    return capped(call) and with_lse(call)


def hiding(call: Call) -> bool:
    """The call can hide keys."""
    return causal(call) or masked(call) or windowed(call)


def scaled(call: Call) -> bool:
    """The call has an explicit scale."""
    return call.scale is not None


def grouped(call: Call) -> bool:
    """The call has fewer key heads than query heads."""
    return call.query.shape[1] != call.key.shape[1]


def many_heads(call: Call) -> bool:
    """The call has more than one key head."""
    return call.key.shape[1] > 1


def batched(call: Call) -> bool:
    """The call has keys of more than one batch element."""
    return call.key.shape[0] > 1


def lengthed(call: Call) -> bool:
    """The call has key_lengths."""
    return call.key_lengths is not None


def sloped(call: Call) -> bool:
    """The call has slopes of ALiBi."""
    return call.alibi_slopes is not None


def sloped_groups(call: Call) -> bool:
    """The call has slopes and fewer key heads than query heads."""
    return sloped(call) and grouped(call)


def sinking(call: Call) -> bool:
    """The call has sinks."""
    return call.sinks is not None


def sinking_with_lse(call: Call) -> bool:
    """The call has sinks and asks for the lse."""
    return sinking(call) and with_lse(call)


def sinking_groups(call: Call) -> bool:
    """The call has sinks and fewer key heads than query heads."""
    return sinking(call) and grouped(call)


def with_lse(call: Call) -> bool:
    """The call asks for the lse."""
    return call.return_lse


def hiding_with_lse(call: Call) -> bool:
    """The call can hide keys and asks for the lse."""
    return hiding(call) and with_lse(call)


@dataclass(frozen=True)
class Mistake:
    """A known mistake in one form.

    name: a slug, shared by the forms of one mistake. sentence: what the kernel does, to be read after the name. needs:
    whether a call can show it. form: what tells this form from the others of the name, such as the size of a tile.
    rounds: a lack of precision, whose results depend on the order of operations in a few elements. rule: the id of the
    rule that it breaks; "" where `broken` says which, by name and problem.
    """

    name: str
    sentence: str
    needs: Callable[[Call], bool]
    steps: Steps
    form: str = ""
    rounds: bool = False
    rule: str = ""

    def numbers(self, call: Call, corner: str) -> Numbers:
        """Return what a kernel that makes the mistake gives: output, and the lse where the call asks for it. Raises
        NoPrediction where the mistake does not say."""
        output, lse, _ = attend(call, corner, self.steps).result
        return {"output": output, "lse": lse} if call.return_lse and lse is not None else {"output": output}


RIGHT = Mistake("right", "nothing is wrong", any_call, Steps())
