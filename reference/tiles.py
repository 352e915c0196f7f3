"""Tiles of one attention call: the scores of some query rows against some keys (chapter "FlashAttention").

Query heads that share a key head stand in a dimension of their own, (batch, kv_heads, group, length, dim), so that a
tile of keys serves them all and keys are not expanded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnspec.reference import masks, windows
from attnspec.reference import softcap as caps
from attnspec.reference.alibi import fitting_slopes
from attnspec.reference.attention import check_inputs, softmax_scale
from attnspec.spec.errors import InputError


@dataclass(frozen=True)
class Tiles:
    """The arguments of a call, and the numbers that a tile needs of them.

    query: (batch, kv_heads, group, q_len, head_dim). key, value: (batch, kv_heads, k_len, dim). attn_mask: (batch,
    kv_heads, group, q_len, k_len) or None; all of these are views of the arguments. key_lengths: (batch,), how many
    keys are there. diagonal: (batch,), that of row i is at key i + diagonal; left, right: how many keys before and
    after it a row sees, None for all, so that right is 0 with `is_causal`. slopes: (1 or batch, kv_heads, group, 1,
    1), of ALiBi, None without; alibi_diagonal: as diagonal, that its distances are measured from. accumulate: the dtype
    of every tile.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None
    key_lengths: torch.Tensor
    diagonal: torch.Tensor
    left: int | None
    right: int | None
    slopes: torch.Tensor | None
    alibi_form: str
    alibi_diagonal: torch.Tensor
    scale: float
    softcap: float | None
    accumulate: torch.dtype

    def query_tile(self, rows: slice) -> torch.Tensor:
        """Return the queries of some rows, (batch, kv_heads, group, rows, head_dim)."""
        return self.query[..., rows, :].to(self.accumulate)

    def key_tile(self, keys: slice) -> torch.Tensor:
        """Return some keys, (batch, kv_heads, keys, head_dim); 0 where the key is not there."""
        return self._there(self.key, keys)

    def value_tile(self, keys: slice) -> torch.Tensor:
        """Return some values, (batch, kv_heads, keys, value_dim); 0 where the key is not there."""
        return self._there(self.value, keys)

    def scores(self, rows: slice, keys: slice) -> torch.Tensor:
        """Return capped scale * q.k + bias of a tile, -inf where the key is hidden: (batch, kv_heads, group, rows,
        keys).

        Rules: `attention.output`, `softcap.scores`, `mask.bias-then-mask`, `alibi.bias`.
        """
        scores = caps.apply(self.scaled(rows, keys), self.softcap)
        if self.attn_mask is not None and self.attn_mask.dtype != torch.bool:
            scores = scores + self.attn_mask[..., rows, keys].to(self.accumulate)
        if self.slopes is not None:
            scores = scores - self.slopes * self.distance(rows, keys)
        return torch.where(self.visible(rows, keys), scores, -torch.inf)

    def scaled(self, rows: slice, keys: slice) -> torch.Tensor:
        """Return scale * q.k of a tile, (batch, kv_heads, group, rows, keys)."""
        return self.scale * torch.einsum("bhgqd,bhkd->bhgqk", self.query_tile(rows), self.key_tile(keys))

    def below_cap(self, grad_scores: torch.Tensor, rows: slice, keys: slice) -> torch.Tensor:
        """Return the gradient of the scaled scores of a tile from that of the capped ones. Rule: `softcap.gradient`."""
        return grad_scores * caps.slope(self.scaled(rows, keys), self.softcap) if self.softcap else grad_scores

    def visible(self, rows: slice, keys: slice) -> torch.Tensor:
        """Return which keys of a tile take part, bool, of a shape that broadcasts to the scores.

        Rules: `mask.bool`, `mask.additive`, `mask.combine`, `mask.causal-upper-left`, `mask.causal-lower-right`,
        `window.bounds`, `window.causal`.
        """
        key_position = self._positions(keys)  # (keys,)
        seen = key_position < self.key_lengths[:, None, None, None, None]  # (batch, 1, 1, 1, keys)
        if self.attn_mask is not None:
            mask = self.attn_mask[..., rows, keys]
            seen = seen & (mask if mask.dtype == torch.bool else mask != -torch.inf)
        own_position = self._positions(rows)[:, None] + self.diagonal[:, None, None, None, None]  # (batch,1,1,rows,1)
        if self.left is not None:
            seen = seen & (key_position >= own_position - self.left)
        if self.right is not None:
            seen = seen & (key_position <= own_position + self.right)
        return seen

    def distance(self, rows: slice, keys: slice) -> torch.Tensor:
        """Return how far each key of a tile lies from the diagonal, (batch, 1, 1, rows, keys). Rule: `alibi.form`."""
        diagonal = self._positions(rows)[:, None] + self.alibi_diagonal[:, None, None, None, None]
        signed = (diagonal - self._positions(keys)).to(self.accumulate)
        return signed.abs() if self.alibi_form == "symmetric" else signed

    def _there(self, heads: torch.Tensor, keys: slice) -> torch.Tensor:
        there = self._positions(keys)[:, None] < self.key_lengths[:, None, None, None]  # (batch, 1, keys, 1)
        return torch.where(there, heads[..., keys, :].to(self.accumulate), 0.0)

    def _positions(self, of: slice) -> torch.Tensor:
        return torch.arange(of.start, of.stop, device=self.query.device)


def cut(length: int, size: int) -> list[slice]:
    """Return the slices of `size` that a length falls into; the last one may be shorter."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def tiles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    causal_alignment: str,
    scale: float | None,
    enable_gqa: bool,
    key_lengths: torch.Tensor | None,
    window_size: tuple[int, int] | None,
    alibi_slopes: torch.Tensor | None,
    alibi_form: str,
    alibi_alignment: str | None,
    softcap: float | None,
    accumulate: torch.dtype,
) -> Tiles:
    """Return the call as it is cut into tiles. No tensor is copied.

    Arguments: `attnspec.reference.flash.flash_attention`. Raises InputError where they do not fit each other. Rules:
    `notation.shapes`, `grouped.head-map`, `mask.broadcast`, `attention.scale-default`, `attention.kv-broadcast`.
    """
    check_inputs(query, key, value, enable_gqa)
    batch, q_heads, q_len, head_dim = query.shape
    kv_heads, k_len = key.shape[1:3]
    if kv_heads == 0 or q_heads % kv_heads:
        raise InputError(f"{q_heads} query heads cannot share {kv_heads} key and value heads: use a multiple")
    groups = (kv_heads, q_heads // kv_heads)  # query head i is head i % group of key head floor(i / group)
    if attn_mask is not None:
        attn_mask = torch.unflatten(masks.broadcast(attn_mask, (batch, q_heads, q_len, k_len)), 1, groups)
    if key_lengths is None:
        key_lengths = torch.full((batch,), k_len, device=query.device)
    check_key_lengths(key_lengths, batch, k_len)
    offsets = {"upper_left": torch.zeros_like(key_lengths), "lower_right": key_lengths - q_len}
    alibi_alignment = alibi_alignment or causal_alignment
    for name, alignment in (("causal_alignment", causal_alignment), ("alibi_alignment", alibi_alignment)):
        if alignment not in offsets:
            raise InputError(f"{name} is {alignment!r}: use one of {', '.join(offsets)}")
    left, right = band(window_size, is_causal)
    return Tiles(
        query=torch.unflatten(query, 1, groups),
        key=key.expand(batch, -1, -1, -1),
        value=value.expand(batch, -1, -1, -1),
        attn_mask=attn_mask,
        key_lengths=key_lengths,
        diagonal=offsets[causal_alignment],
        left=left,
        right=right,
        slopes=None if alibi_slopes is None else slopes_of(alibi_slopes, batch, groups, accumulate),
        alibi_form=alibi_form,
        alibi_diagonal=offsets[alibi_alignment],
        scale=softmax_scale(scale, head_dim),
        softcap=softcap,
        accumulate=accumulate,
    )


def slopes_of(alibi_slopes: torch.Tensor, batch: int, groups: tuple[int, int], accumulate: torch.dtype) -> torch.Tensor:
    """Return slopes (q_heads,) or (batch, q_heads) as (1 or batch, kv_heads, group, 1, 1). Raises InputError for
    another shape. Rule: `alibi.shape`."""
    per_batch = fitting_slopes(alibi_slopes, batch, groups[0] * groups[1])
    return torch.unflatten(per_batch.to(accumulate), 1, groups)[..., None, None]


def band(window_size: tuple[int, int] | None, is_causal: bool) -> tuple[int | None, int | None]:
    """Return how many keys before and after its diagonal a row sees, None for all.

    A causal row sees none after it, however far the window reaches: min(right, 0). Raises InputError for a window that
    is none. Rules: `window.causal`, `window.range`.
    """
    if window_size is not None:
        windows.check(window_size)
    left, right = (None if side == -1 else side for side in window_size or (-1, -1))
    return left, 0 if is_causal else right


def check_key_lengths(key_lengths: torch.Tensor, batch: int, k_len: int) -> None:
    """Raise InputError unless key_lengths holds an integer from 0 to k_len for each batch element."""
    if key_lengths.shape != (batch,) or key_lengths.is_floating_point() or key_lengths.dtype == torch.bool:
        raise InputError(f"key_lengths is {key_lengths.dtype} {tuple(key_lengths.shape)}: use integers, ({batch},)")
    if ((key_lengths < 0) | (key_lengths > k_len)).any():
        raise InputError(f"key_lengths holds {key_lengths.tolist()}: use 0 to {k_len}, the length of the keys")
