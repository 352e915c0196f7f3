"""Mistakes about hidden keys: the causal triangle, the mask, what a hidden score is, rows that see nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import (
    TILES,
    Mistake,
    biased,
    bool_masked,
    causal,
    causal_and_masked,
    grouped,
    hiding,
    masked,
)
from attnspec.conformance.diagnosis.steps import NoPrediction, Shape, Steps
from attnspec.spec.call import Call

SENTINELS = {  # finite numbers that stand for -inf, as kernels write them
    "-1e4": -1e4,
    "-1e5": -1e5,
    "-1e9": -1e9,
    "-1e30": -1e30,
    "the lowest float32": -3.4028234663852886e38,
    "the lowest float64": -1.7976931348623157e308,
    "the lowest bfloat16": -3.3895313892515355e38,
}


def either(kept: torch.Tensor | None, triangle: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
    """One of mask and triangle is enough to see a key."""
    return right.visible(kept, triangle, slots) if kept is None or triangle is None else slots & (kept | triangle)


def mask_alone(kept: torch.Tensor | None, triangle: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
    """With a mask there is no triangle."""
    return right.visible(kept, triangle if kept is None else None, slots)


def tiles_up_to(tile: int, last: int) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """A triangle of whole tiles: up to the tile of the diagonal (last = 0), or to the one before (-1)."""

    def triangle(row: torch.Tensor, key: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        seen = key // tile <= (row + offset) // tile + last
        if not bool(seen.any()):
            raise NoPrediction
        return seen

    return triangle


CAUSAL = (
    Mistake("causal-dropped", "is_causal is ignored", causal, Steps(triangle=lambda row, key, _: key >= 0 * row)),
    Mistake("causal-dropped-with-mask", "is_causal is ignored where there is an attn_mask", causal_and_masked,
            Steps(visible=mask_alone)),
    Mistake("causal-other-corner", "the triangle is aligned to the other corner", causal,
            Steps(diagonal=right.other_diagonal)),
    Mistake("causal-sees-next-key", "the triangle is one off: each row also sees the next key", causal,
            Steps(triangle=lambda row, key, offset: key <= row + offset + 1)),
    Mistake("causal-misses-own-key", "the triangle is one off: no row sees its own key", causal,
            Steps(triangle=lambda row, key, offset: key < row + offset)),
    Mistake("causal-inverted", "the triangle is the wrong way round: each row sees the future", causal,
            Steps(triangle=lambda row, key, offset: key >= row + offset), "own key included"),
    Mistake("causal-inverted", "the triangle is the wrong way round: each row sees the future", causal,
            Steps(triangle=lambda row, key, offset: key > row + offset), "own key excluded"),
    *(Mistake("causal-by-whole-tiles", "the tile on the diagonal is not masked inside", causal,
              Steps(triangle=tiles_up_to(tile, 0)), f"tiles of {tile}") for tile in TILES),
    *(Mistake("causal-skips-diagonal-tile", "the tile on the diagonal is skipped", causal,
              Steps(triangle=tiles_up_to(tile, -1)), f"tiles of {tile}") for tile in TILES),
)  # fmt: skip


def of_first(axis: int) -> Callable[[Call, Shape], torch.Tensor | None]:
    """The mask of index 0 of an axis, for every index of it."""

    def mask(call: Call, shape: Shape) -> torch.Tensor | None:
        whole = right.mask(call, shape)
        return None if whole is None else whole.narrow(axis, 0, min(1, shape[axis])).expand(shape)

    return mask


def of_batch(first: bool) -> Callable[[Call, Shape], torch.Tensor | None]:
    """A mask of three dimensions is taken for (batch, q_len, k_len); first: its first entry serves all."""

    def mask(call: Call, shape: Shape) -> torch.Tensor | None:
        given = call.attn_mask
        if given is None or given.ndim != 3:
            return right.mask(call, shape)
        entries = given[:1] if first or given.shape[0] == 1 else given
        if entries.shape[0] not in (1, shape[0]):
            raise NoPrediction
        return entries[:, None].expand(shape)

    return mask


def of_key_head(call: Call, shape: Shape) -> torch.Tensor | None:
    """The mask of head floor(i / g) for query head i."""
    mask = right.mask(call, shape)
    return None if mask is None else mask[:, torch.arange(shape[1]) // (shape[1] // call.key.shape[1])]


def transposed(call: Call, shape: Shape) -> torch.Tensor | None:
    """The mask with queries and keys swapped."""
    mask = right.mask(call, shape)
    if shape[2] != shape[3]:
        raise NoPrediction
    return None if mask is None else mask.transpose(-1, -2)


def everything(mask: torch.Tensor) -> torch.Tensor:
    """Every slot takes part."""
    return torch.ones_like(mask, dtype=torch.bool)


def times(factor: float) -> Callable[[torch.Tensor, float], torch.Tensor | float]:
    """The bias, times a factor."""
    return lambda mask, scale: factor * right.bias(mask, scale)


MASK = (
    Mistake("mask-dropped", "attn_mask is ignored", masked, Steps(mask=lambda call, shape: None)),
    Mistake("mask-dropped-with-causal", "attn_mask is ignored where the call is causal", causal_and_masked,
            Steps(mask=lambda call, shape: None if call.is_causal else right.mask(call, shape))),
    Mistake("mask-or-causal", "a key is seen where one of attn_mask and triangle lets it, not both", causal_and_masked,
            Steps(visible=either)),
    Mistake("mask-inverted", "True hides a key, False lets it take part", bool_masked, Steps(kept=lambda mask: ~mask)),
    Mistake("mask-bool-added", "the boolean attn_mask is added to the scores as 0 and 1", bool_masked,
            Steps(kept=everything, bias=lambda mask, _: mask.double())),
    Mistake("mask-bias-dropped", "the finite numbers of attn_mask are ignored, only its -inf counts", biased,
            Steps(bias=times(0.0))),
    Mistake("mask-bias-ignores-hiding", "-inf in attn_mask hides nothing", biased, Steps(kept=everything)),
    Mistake("mask-bias-before-scale", "attn_mask is added before the scale is applied", biased,
            Steps(bias=lambda mask, scale: scale * right.bias(mask, scale))),
    Mistake("mask-bias-subtracted", "attn_mask is subtracted", biased, Steps(bias=times(-1.0))),
    Mistake("mask-bias-twice", "attn_mask is added twice", biased, Steps(bias=times(2.0))),
    Mistake("mask-bias-without-log2e", "the scores are scaled for 2^x, attn_mask is not", biased,
            Steps(bias=times(math.log(2)))),
    Mistake("mask-of-batch-0", "the mask of batch element 0 serves all", masked, Steps(mask=of_first(0))),
    Mistake("mask-of-head-0", "the mask of head 0 serves all", masked, Steps(mask=of_first(1))),
    Mistake("mask-of-row-0", "the mask of row 0 serves all", masked, Steps(mask=of_first(2))),
    Mistake("mask-of-key-0", "the mask of key 0 serves all", masked, Steps(mask=of_first(3))),
    *(Mistake("mask-rank3-as-batch", "a mask of three dimensions is read as (batch, q_len, k_len)", masked,
              Steps(mask=of_batch(first)), form) for form, first in (("", False), ("entry 0 for all", True))),
    Mistake("mask-of-key-head", "query head i takes the mask of head floor(i / g)",
            lambda call: masked(call) and grouped(call), Steps(mask=of_key_head)),
    Mistake("mask-transposed", "queries and keys of attn_mask are swapped", masked, Steps(mask=transposed)),
)  # fmt: skip


def filled(low: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A finite number in place of a hidden score."""
    return lambda scores, visible: torch.where(visible, scores, low)


def added(low: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A finite number added to a hidden score, in float32."""
    return lambda scores, visible: torch.where(visible, scores, (scores.float() + low).double())


def with_hidden_maximum(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Scores whose exponentials, with the maximum of all keys taken out, vanish in float32."""
    if scores.shape[-1] == 0:
        return scores
    top = scores.amax(-1, keepdim=True)
    return torch.where(visible, top + (scores - top).exp().float().double().log(), -torch.inf)


def empty_row(weight: float | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """The right weights, but for a row that sees nothing; weight: of each of its keys, None for the mean."""

    def weights(scores: torch.Tensor) -> torch.Tensor:
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        there = 1 / max(1, scores.shape[-1]) if weight is None else weight
        return torch.where(empty, there, right.weights(scores))

    return weights


def empty_lse(number: float | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """The right lse, but for a row that sees nothing; number: there, None for the log of the number of keys."""

    def lse(scores: torch.Tensor) -> torch.Tensor:
        found = right.lse(scores)
        there = math.log(max(1, scores.shape[-1])) if number is None else number
        return torch.where(found == -torch.inf, there, found)

    return lse


def of_bool(mask: torch.Tensor) -> torch.Tensor:
    """A bool mask hides keys; -inf in an additive one is left to the sum of score and bias."""
    return mask if mask.dtype == torch.bool else everything(mask)


def as_it_is(mask: torch.Tensor, scale: float) -> torch.Tensor | float:
    """The bias, -inf included."""
    return 0.0 if mask.dtype == torch.bool else mask.double()


MEAN = "a row that sees no key gives the mean of all values"
FINITE = "a hidden score is a finite number, not -inf"
EMPTY_NAN = "a row that sees no key gives NaN, not 0"

HIDDEN_SCORES = (
    Mistake("maximum-of-hidden-keys", "the maximum that is taken out is that of all keys, hidden ones too", hiding,
            Steps(hide=with_hidden_maximum)),
    *(Mistake("empty-row-mean-of-v", MEAN, hiding, Steps(weights=empty_row(None), lse=lse), form)
      for form, lse in (("", right.lse), ("lse log k_len", empty_lse(None)))),
    *(Mistake("empty-row-nan", EMPTY_NAN, hiding, Steps(weights=empty_row(math.nan), lse=lse), form)
      for form, lse in (("", right.lse), ("lse too", empty_lse(math.nan)))),
    *(Mistake("finite-sentinel", FINITE, hiding, Steps(hide=hide(low)), f"{form}{more}", rounds=hide is added)
      for more, hide in (("", filled), (" added", added)) for form, low in SENTINELS.items()),
    *(Mistake("finite-sentinel", FINITE, hiding, Steps(hide=hide(low), kept=of_bool, bias=as_it_is),
              f"{form}{more}, but for -inf in attn_mask", rounds=hide is added)
      for more, hide in (("", filled), (" added", added)) for form, low in SENTINELS.items()),
)  # fmt: skip

HIDING = (*CAUSAL, *MASK, *HIDDEN_SCORES)
