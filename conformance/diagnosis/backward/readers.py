"""Mistakes about who gives to a gradient: the heads of a group, the batch elements that share a key, and all that read
one number of a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from attnspec.conformance.diagnosis.backward import steps as right
from attnspec.conformance.diagnosis.backward.mistake import ENDS, BackwardMistake
from attnspec.conformance.diagnosis.backward.steps import BackwardSteps, Pass
from attnspec.conformance.diagnosis.mistake import batched, biased, capped_and_biased, grouped
from attnspec.spec.call import Call

Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
GROUPED, BROADCAST, BIAS = "backward.grouped", "backward.broadcast", "backward.bias"


def shared(call: Call) -> bool:
    """The batch elements share one key tensor."""
    return call.query.shape[0] > 1 and not batched(call)


def broadcast_bias(call: Call) -> bool:
    """Several slots read one number of an additive mask."""
    slots = call.query.shape[:3].numel() * call.key.shape[2]
    return call.attn_mask is not None and biased(call) and call.attn_mask.numel() < slots


def of_sum(name: str, sentence: str, wrong: Sum, needs: Callable[[Call], bool], rule: str) -> Iterator[BackwardMistake]:
    """Yield a mistake of the sum over those that read keys and values, of both and of one."""
    for form, steps in (
        ("those of key and value", BackwardSteps(key_readers=wrong, value_readers=wrong)),
        ("that of key", BackwardSteps(key_readers=wrong)),
        ("that of value", BackwardSteps(value_readers=wrong)),
    ):
        yield BackwardMistake(name, sentence, needs, form=form, back=steps, rule=rule)


def grouping(grad: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """Return (batch, kv_heads, group, k_len, dim)."""
    batch, q_heads, k_len, dim = grad.shape
    return grad.reshape(batch, heads.shape[1], q_heads // heads.shape[1], k_len, dim)


def one_of_group(index: int) -> Sum:
    """One query head of the group."""
    return lambda grad, heads: right.readers(grouping(grad, heads)[:, :, index], heads)


def mean_of_group(grad: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """The mean of the group."""
    return right.readers(grouping(grad, heads).mean(2), heads)


def tiled(grad: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """Query head i to key head i modulo their number."""
    batch, _, k_len, dim = grad.shape
    return right.readers(grad.reshape(batch, -1, heads.shape[1], k_len, dim).sum(1), heads)


def one_of_batch(index: int) -> Sum:
    """One batch element of those that share a key."""
    return lambda grad, heads: right.readers(grad[index][None], heads)


def of_mask(
    name: str, sentence: str, wrong: Callable[[Pass, torch.Tensor, torch.Tensor], torch.Tensor],
    needs: Callable[[Call], bool], form: str = "", rule: str = BIAS, zero: str = "",
) -> BackwardMistake:  # fmt: skip
    """Return a mistake of the gradient of an additive mask."""
    return BackwardMistake(name, sentence, needs, form=form, back=BackwardSteps(mask=wrong), rule=rule, zero=zero)


def one_reader(index: int, axes: tuple[int, ...]) -> Callable[[Pass, torch.Tensor, torch.Tensor], torch.Tensor]:
    """One of those along some axes that read a number of the mask, of the rest the sum."""

    def read(at: Pass, grad: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
        shape = (1,) * (4 - attn_mask.ndim) + tuple(attn_mask.shape)
        for axis in axes:
            if shape[axis] == 1:
                grad = grad.select(axis, index).unsqueeze(axis)
        return right.mask(at, grad, attn_mask)

    return read


WHERE = {(0, 1, 2, 3): "", (0,): " batch element", (1,): " head", (2,): " row"}
READERS = (
    *of_sum("grad-last-head-of-group", "the last query head of a group overwrites the others", one_of_group(-1),
            grouped, GROUPED),
    *of_sum("grad-first-head-of-group", "the first query head of a group alone gives a gradient", one_of_group(0),
            grouped, GROUPED),
    *of_sum("grad-group-mean", "the gradients of a group are their mean, not their sum", mean_of_group, grouped,
            GROUPED),
    *of_sum("grad-heads-tiled", "query head i gives its gradient to key head i mod kv_heads", tiled, grouped, GROUPED),
    *of_sum("grad-last-batch-of-shared-key", "the last batch element overwrites the gradient of a key that all share",
            one_of_batch(-1), shared, BROADCAST),
    *of_sum("grad-first-batch-of-shared-key", "the first batch element alone gives to a key that all share",
            one_of_batch(0), shared, BROADCAST),
    of_mask("grad-bias-zero", "the gradient of the mask is 0", lambda at, grad, mask: torch.zeros(mask.shape).double(),
            biased, zero="attn_mask"),
    of_mask("grad-bias-scaled", "the gradient of the mask is multiplied by the scale",
            lambda at, grad, mask: at.trace.scale * right.mask(at, grad, mask), biased),
    of_mask("grad-bias-negated", "the gradient of the mask has the wrong sign",
            lambda at, grad, mask: -right.mask(at, grad, mask), biased),
    of_mask("grad-bias-transposed", "the gradient of the mask has rows and keys exchanged",
            lambda at, grad, mask: right.mask(at, grad.transpose(-1, -2).reshape(grad.shape), mask), biased),
    BackwardMistake("grad-bias-capped", "the slope of the softcap multiplies the gradient of the mask too",
                    capped_and_biased, back=BackwardSteps(mask_slope=right.slope), rule=BIAS),
    *(of_mask("grad-bias-of-one-reader", "the gradient of a mask that is broadcast is that of one reader, not the sum",
              one_reader(index, axes), broadcast_bias, f"the {word}{where}", BROADCAST)
      for axes, where in WHERE.items() for index, word in ENDS),
)  # fmt: skip
