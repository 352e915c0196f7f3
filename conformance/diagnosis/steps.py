"""Attention in float64 as a chain of named steps, each of which can be replaced: a mistake is one replaced step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnspec.conformance.budget import positions_of
from attnspec.reference import grouped_heads, masks
from attnspec.reference import softcap as caps
from attnspec.reference import softmax as plain
from attnspec.spec.call import Call, Result

Shape = tuple[int, int, int, int]


class NoPrediction(Exception):
    """The mistake does not say what comes of this call: a kernel that makes it may do anything here."""


def scale(call: Call) -> float:
    """The scale of a call. Rules: `attention.scale-default`, `attention.scale-explicit`."""
    return default_scale(call) if call.scale is None else call.scale


def default_scale(call: Call) -> float:
    """1 / sqrt(head_dim)."""
    return 1 / math.sqrt(call.query.shape[-1])


def inputs(call: Call) -> Call:
    """The tensors as the kernel takes them in."""
    return call


def heads(x: torch.Tensor, q_heads: int) -> torch.Tensor:
    """Keys or values (batch, kv_heads, k_len, dim), one head for every query head. Rule: `grouped.head-map`."""
    return grouped_heads.expand(x, q_heads)


def scores(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled scores (batch, q_heads, q_len, k_len). Rule: `attention.output`."""
    return scale * (query @ key.transpose(-1, -2))


def cap(scores: torch.Tensor, softcap: float, scale: float) -> torch.Tensor:
    """The scaled scores, capped; scale: that of the call. Rule: `softcap.scores`."""
    return caps.apply(scores, softcap)


def mask(call: Call, shape: Shape) -> torch.Tensor | None:
    """The `attn_mask`, broadcast to (batch, q_heads, q_len, k_len). Rule: `mask.broadcast`."""
    return None if call.attn_mask is None else masks.broadcast(call.attn_mask, shape)


def bias(mask: torch.Tensor, scale: float) -> torch.Tensor | float:
    """What a mask adds to the scaled scores; hidden slots add nothing. Rule: `mask.additive`."""
    return 0.0 if mask.dtype == torch.bool else torch.where(mask == -torch.inf, 0.0, mask.double())


def kept(mask: torch.Tensor) -> torch.Tensor:
    """The slots that a mask lets take part, bool. Rules: `mask.bool`, `mask.additive`."""
    return mask if mask.dtype == torch.bool else mask != -torch.inf


def exist(call: Call, k_len: int) -> torch.Tensor:
    """The keys that exist, bool (1 or batch, 1, 1, k_len). Rule: `key-lengths.visible`."""
    return torch.arange(k_len) < ends(call, k_len)


def ends(call: Call, k_len: int) -> torch.Tensor:
    """How many keys exist, (1 or batch, 1, 1, 1)."""
    return (torch.tensor([k_len]) if call.key_lengths is None else call.key_lengths)[:, None, None, None]


def diagonal(call: Call, corner: str) -> torch.Tensor:
    """At which key row 0 has its diagonal, (1 or batch, 1, 1, 1): 0 for `upper_left`, else how many keys exist less
    q_len. Rules: `mask.causal-lower-right`, `key-lengths.causal`, `window.corner`."""
    end = ends(call, call.key.shape[2])
    return end - call.query.shape[2] if corner == "lower_right" else torch.zeros_like(end)


def other_diagonal(call: Call, corner: str) -> torch.Tensor:
    """The diagonal of the corner that is not declared."""
    return diagonal(call, "upper_left" if corner == "lower_right" else "lower_right")


def triangle(row: torch.Tensor, key: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """The slots that `is_causal` lets take part, bool; offset: as from `diagonal`.

    row: (q_len, 1) and key: (k_len,) are positions. Rules: `mask.causal-upper-left`, `mask.causal-lower-right`.
    """
    return key <= row + offset


def window(row: torch.Tensor, key: torch.Tensor, offset: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """The slots that a window lets take part, bool; arguments as of `triangle`, size: (left, right). Rules:
    `window.bounds`, `window.corner`."""
    left, right = (key.numel() + row.numel() if side == -1 else side for side in size)
    return (key >= row + offset - left) & (key <= row + offset + right)


def visible(kept: torch.Tensor | None, triangle: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
    """The visible set; slots: all of them, bool (batch, q_heads, q_len, k_len). Rule: `mask.combine`."""
    for seen in (kept, triangle):
        slots = slots if seen is None else slots & seen
    return slots


def position(call: Call, shape: Shape) -> torch.Tensor | float:
    """What ALiBi adds to the scores, 0 without slopes. Rules: `alibi.bias`, `alibi.form`, `alibi.offset`."""
    added = positions_of(call, shape)
    return 0.0 if added is None else added


def hide(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """The scores, -inf where a slot is hidden."""
    return torch.where(visible, scores, -torch.inf)


def sink(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """The scores with the sink of the head as a last key, (batch, q_heads, q_len, k_len + 1). Rule: `sinks.weight`."""
    return scores if call.sinks is None else beside(scores, call.sinks)


def beside(scores: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Scores (batch, q_heads, q_len, keys) with one more key, whose score is the head's of `sinks`, (q_heads,)."""
    return torch.cat([scores, sinks.double()[:, None, None].expand(*scores.shape[:3], 1)], -1)


def weights(scores: torch.Tensor) -> torch.Tensor:
    """The weights. Rules: `softmax.weights`, `mask.fully-masked-row`."""
    return plain.softmax(scores, scores != -torch.inf)


def lse(scores: torch.Tensor) -> torch.Tensor:
    """The log of the sum of exponentials, (batch, q_heads, q_len). Rules: `softmax.lse`, `softmax.lse-empty-row`."""
    return plain.lse(scores, scores != -torch.inf)


def output(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The sum of the values by their weights, (batch, q_heads, q_len, value_dim). Rule: `attention.output`."""
    return weights @ value


@dataclass(frozen=True)
class Steps:
    """The steps in the order in which they are taken; by default the right ones."""

    scale: Callable[[Call], float] = scale
    inputs: Callable[[Call], Call] = inputs
    key_heads: Callable[[torch.Tensor, int], torch.Tensor] = heads
    value_heads: Callable[[torch.Tensor, int], torch.Tensor] = heads
    scores: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor] = scores
    cap: Callable[[torch.Tensor, float, float], torch.Tensor] = cap
    cap_all: Callable[[torch.Tensor, float], torch.Tensor] = lambda scores, softcap: scores
    lse_of_scaled: bool = False  # the lse knows no cap
    mask: Callable[[Call, Shape], torch.Tensor | None] = mask
    bias: Callable[[torch.Tensor, float], torch.Tensor | float] = bias
    position: Callable[[Call, Shape], torch.Tensor | float] = position
    kept: Callable[[torch.Tensor], torch.Tensor] = kept
    exist: Callable[[Call, int], torch.Tensor] = exist
    diagonal: Callable[[Call, str], torch.Tensor] = diagonal
    window_diagonal: Callable[[Call, str], torch.Tensor] = diagonal
    triangle: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = triangle
    window: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, int]], torch.Tensor] = window
    visible: Callable[[torch.Tensor | None, torch.Tensor | None, torch.Tensor], torch.Tensor] = visible
    hide: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = hide
    sink: Callable[[Call, torch.Tensor], torch.Tensor] = sink
    weights: Callable[[torch.Tensor], torch.Tensor] = weights
    lse: Callable[[torch.Tensor], torch.Tensor] = lse
    output: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = output


@dataclass(frozen=True)
class Trace:
    """What the steps gave, all float64 but `visible`.

    query, key, value: (batch, q_heads, length, dim). scaled, capped, biased: scores (batch, q_heads, q_len, k_len),
    with the cap, with the bias; visible, weights: of the same shape. output: (batch, q_heads, q_len, value_dim); lse:
    (batch, q_heads, q_len).
    """

    call: Call
    scale: float
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaled: torch.Tensor
    capped: torch.Tensor
    biased: torch.Tensor
    visible: torch.Tensor
    weights: torch.Tensor
    result: Result


def attend(call: Call, corner: str, steps: Steps) -> Trace:
    """Take the steps on a call; corner: `upper_left` or `lower_right`, where a right triangle is aligned.

    Raises NoPrediction where a replaced step does not say what comes of the call.
    """
    scale = steps.scale(call)
    offset, window_offset = steps.diagonal(call, corner), steps.window_diagonal(call, corner)
    call = steps.inputs(call)
    batch, q_heads, q_len, _ = call.query.shape
    query = call.query.double()
    key = steps.key_heads(call.key.double(), q_heads).expand(batch, -1, -1, -1)
    value = steps.value_heads(call.value.double(), q_heads).expand(batch, -1, -1, -1)
    k_len = key.shape[2]
    shape = (batch, q_heads, q_len, k_len)
    scaled = steps.scores(query, key, scale)
    mask = steps.mask(call, shape)
    capped = steps.cap(scaled, call.softcap, scale) if call.softcap else scaled
    biased = capped if mask is None else capped + steps.bias(mask, scale)
    biased = biased + steps.position(call, shape)
    biased = steps.cap_all(biased, call.softcap) if call.softcap else biased
    positions = torch.arange(q_len)[:, None], torch.arange(k_len)
    slots = torch.ones(shape, dtype=torch.bool)
    if call.key_lengths is not None:
        slots = slots & steps.exist(call, k_len)
    if call.window_size is not None:
        slots = slots & steps.window(*positions, window_offset, call.window_size)
    seen = steps.visible(
        None if mask is None else steps.kept(mask),
        steps.triangle(*positions, offset) if call.is_causal else None,
        slots,
    )
    hidden = steps.hide(biased, seen)
    weights = steps.weights(steps.sink(call, hidden))[..., :k_len]
    uncapped = hidden - capped + scaled if steps.lse_of_scaled else hidden
    result = Result(steps.output(weights, value), steps.lse(steps.sink(call, uncapped)))
    return Trace(call, scale, query, key, value, scaled, capped, biased, seen, weights, result)
