"""Grouped-query and multi-query attention that reads each key head once, for all the query heads that share it.

Keys and values are never expanded to the number of query heads: the query is viewed as (batch, kv_heads, group, q_len,
head_dim) instead. The causal triangle is at the lower right, as decoding with a cache needs: the last query sees all.
"""

from __future__ import annotations

import math

import torch

from attnspec.implementations.torch_eager import broadcast_mask, capped, check_call, check_sinks, check_slopes
from attnspec.spec.capabilities import FEATURES, Capabilities


class Grouped:
    """Attention over shared key heads in float32 (float64 for float64); accuracy class fused, causal lower right."""

    name = "grouped"
    capabilities = Capabilities(
        features=tuple(name for name in FEATURES if name != "dropout_p"),
        head_dims=(1, 512),
        causal_alignment="lower_right",
    )

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        key_lengths: torch.Tensor | None = None,
        window_size: tuple[int, int] | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return attention whose query head i reads key head floor(i / group), and the lse where asked for.

        Arguments: `attnspec.spec.call.Call`. Returns output (batch, q_heads, q_len, value_dim) of the query's dtype,
        and lse (batch, q_heads, q_len) in float32, float64 for float64. key_lengths: (batch,), int32 or int64; keys
        from there on are not read, and the diagonal of causal triangle and window ends at each batch element's own
        last key. Extra memory: the scores, and one float32 copy of each input, two with key_lengths. Raises InputError
        where the tensors do not fit. Rules: `grouped.head-map`, `grouped.multi-query`, `mask.causal-lower-right`,
        `mask.fully-masked-row`, `softmax.lse`, `key-lengths.visible`, `key-lengths.absent`, `key-lengths.causal`.
        Source: Shazeer 2019, section 3; Ainslie et al. 2023, section 2.2.
        """
        check_call(query, key, value, attn_mask, enable_gqa, key_lengths, window_size, softcap)
        check_sinks(sinks, query.shape[1])
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        batch, q_heads, q_len, head_dim = query.shape
        kv_heads, group = key.shape[1], q_heads // key.shape[1]
        if key_lengths is not None:
            exists = torch.arange(key.shape[2], device=key.device) < key_lengths[:, None]  # (batch, k_len)
            key = torch.where(exists[:, None, :, None], key, 0.0)  # (batch, kv_heads, k_len, head_dim)
            value = torch.where(exists[:, None, :, None], value, 0.0)  # (batch, kv_heads, k_len, value_dim)
        shared = query.to(wide).view(batch, kv_heads, group, q_len, head_dim)
        scores = scale * torch.einsum("bhgqd,bhkd->bhgqk", shared, key.to(wide))
        scores = capped(scores, softcap)
        if alibi_slopes is not None:
            scores = scores - steps(alibi_slopes, scores, key_lengths)
        scores = hide(scores, attn_mask, is_causal, key_lengths, window_size)  # (batch, kv_heads, group, q_len, k_len)
        empty = (scores == -torch.inf).all(-1, keepdim=True)  # (batch, kv_heads, group, q_len, 1)
        if sinks is not None:
            column = sinks.to(wide).view(kv_heads, group, 1, 1).expand(*scores.shape[:4], 1)
            scores = torch.cat([scores, column], -1)  # (batch, kv_heads, group, q_len, k_len + 1)
        weights = torch.softmax(scores, -1)[..., : key.shape[2]].masked_fill(empty, 0.0)
        mixed = torch.einsum("bhgqk,bhkd->bhgqd", weights, value.to(wide)).masked_fill(empty, 0.0)
        output = mixed.flatten(1, 2).to(query.dtype)  # (batch, q_heads, q_len, value_dim)
        if not return_lse:
            return output
        return output, torch.logsumexp(scores, -1).flatten(1, 2)  # (batch, q_heads, q_len)


def steps(alibi_slopes: torch.Tensor, scores: torch.Tensor, key_lengths: torch.Tensor | None) -> torch.Tensor:
    """Return slope times the distance to the diagonal at the lower right, (1 or batch, kv_heads, group, q_len, k_len).

    alibi_slopes: (q_heads,) or (batch, q_heads); scores: (batch, kv_heads, group, q_len, k_len). Raises InputError for
    another shape. Rules: `alibi.bias`, `alibi.form`, `alibi.offset`, `alibi.shape`. Source: Press et al. 2022.
    """
    batch, kv_heads, group, q_len, k_len = scores.shape
    check_slopes(alibi_slopes, batch, kv_heads * group)
    end = k_len if key_lengths is None else key_lengths[:, None, None, None, None]  # (batch, 1, 1, 1, 1)
    diagonal = torch.arange(q_len, device=scores.device)[:, None] + (end - q_len)  # (..., q_len, 1)
    distance = (diagonal - torch.arange(k_len, device=scores.device)).abs()
    return alibi_slopes.to(scores.dtype).reshape(-1, kv_heads, group, 1, 1) * distance


def hide(
    scores: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    key_lengths: torch.Tensor | None,
    window_size: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Return the scores plus the bias, and -inf where mask, causal triangle or window hide the key or it is absent.

    scores: (batch, kv_heads, group, q_len, k_len). Raises InputError where the mask does not broadcast to
    (batch, q_heads, q_len, k_len). Rules: `mask.bool`, `mask.additive`, `mask.broadcast`, `mask.combine`,
    `mask.causal-lower-right`, `window.bounds`, `window.causal`, `key-lengths.visible`, `key-lengths.causal`.
    """
    batch, kv_heads, group, q_len, k_len = scores.shape
    if attn_mask is not None:
        mask = broadcast_mask(attn_mask, torch.Size((batch, kv_heads * group, q_len, k_len))).view(scores.shape)
        if mask.dtype == torch.bool:
            scores = torch.where(mask, scores, -torch.inf)
        else:
            scores = torch.where(mask == -torch.inf, -torch.inf, scores + mask)
    end = k_len if key_lengths is None else key_lengths[:, None, None, None, None]  # (batch, 1, 1, 1, 1)
    key_position = torch.arange(k_len, device=scores.device)  # (k_len,)
    if key_lengths is not None:
        scores = torch.where(key_position < end, scores, -torch.inf)
    left, right = (-1, -1) if window_size is None else window_size
    right = 0 if is_causal else right
    query_position = torch.arange(q_len, device=scores.device)[:, None] + (end - q_len)  # (..., q_len, 1)
    if right != -1:
        scores = torch.where(key_position <= query_position + right, scores, -torch.inf)
    if left != -1:
        scores = torch.where(key_position >= query_position - left, scores, -torch.inf)
    return scores


backend = Grouped()
