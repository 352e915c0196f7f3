"""Eager attention: the textbook formula in torch operations, each result stored in the storage dtype.

Scores and weights are rounded to the dtype of the query between operations, as model code without a fused kernel does.
"""

from __future__ import annotations

import math

import torch

from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError


class TorchEager:
    """Plain attention in torch operations; accuracy class eager, causal triangle at the upper left.

    alibi_alignment: from which diagonal ALiBi counts, `upper_left`, or `lower_right` beside an upper left triangle.
    """

    def __init__(self, name: str = "torch_eager", alibi_alignment: str | None = None) -> None:
        self.name = name
        self.capabilities = Capabilities(
            features=tuple(FEATURES), head_dims=(1, 512), accuracy="eager", alibi_alignment=alibi_alignment
        )

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        key_lengths: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        window_size: tuple[int, int] | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return softmax(Q K^T * scale + bias) V over the visible keys, and the lse where asked for.

        Arguments: `attnspec.spec.call.Call`. Returns output (batch, q_heads, q_len, value_dim) of the query's dtype,
        and lse (batch, q_heads, q_len) in float32, float64 for float64. Raises InputError where the tensors do not
        fit. key_lengths: (batch,), int32 or int64; keys from there on are not read. window_size: (left, right), the
        keys around the diagonal that a row sees, -1 for no bound. softcap: the cap of the scaled scores, 0 for none.
        sinks: (q_heads,), a score that joins each row of its head. alibi_slopes: (q_heads,) or (batch, q_heads).
        dropout_p: each weight is dropped with this probability, drawn from torch's own generator. Rules:
        `attention.output`, `mask.fully-masked-row`, `softmax.lse`, `key-lengths.visible`, `key-lengths.absent`,
        `sinks.weight`, `dropout.inverted`, `dropout.on-weights`. Source: Vaswani et al. 2017, equation 1; Srivastava et
        al. 2014, section 10.
        """
        check_call(query, key, value, attn_mask, enable_gqa, key_lengths, window_size, softcap)
        check_dropout(dropout_p)
        check_sinks(sinks, query.shape[1])
        if key_lengths is not None:
            absent = past_the_end(key_lengths, key.shape[2])  # (batch, k_len)
            key = key.masked_fill(absent[:, None, :, None], 0.0)  # (batch, kv_heads, k_len, head_dim)
            value = value.masked_fill(absent[:, None, :, None], 0.0)  # (batch, kv_heads, k_len, value_dim)
        group = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(group, dim=1)  # (batch, q_heads, k_len, head_dim)
        value = value.repeat_interleave(group, dim=1)  # (batch, q_heads, k_len, value_dim)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = (query @ key.transpose(-1, -2)) * scale  # (batch, q_heads, q_len, k_len)
        scores = capped(scores, softcap)
        if alibi_slopes is not None:
            lower_right = self.capabilities.alibi_corner == "lower_right"
            scores = scores - steps(alibi_slopes, scores.shape, wide, lower_right, key_lengths).to(scores.dtype)
        scores = masked(scores, attn_mask, is_causal, key_lengths, window_size)
        empty = (scores == -torch.inf).all(-1, keepdim=True)  # (batch, q_heads, q_len, 1): the row sees no key
        if sinks is not None:
            column = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, column], -1)  # (batch, q_heads, q_len, k_len + 1)
        weights = torch.softmax(scores, -1)[..., : key.shape[2]].masked_fill(empty, 0.0)
        if dropout_p > 0:
            weights = dropped(weights, dropout_p)
        output = (weights @ value).masked_fill(empty, 0.0)  # (batch, q_heads, q_len, value_dim)
        if not return_lse:
            return output
        return output, torch.logsumexp(scores.to(wide), -1)  # (batch, q_heads, q_len)


def capped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Return softcap * tanh(scores / softcap); the scores themselves for a cap of 0 or None. Rule: `softcap.scores`."""
    return torch.tanh(scores / softcap) * softcap if softcap else scores


def masked(
    scores: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    key_lengths: torch.Tensor | None,
    window_size: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Return the scores with the bias added and -inf in every hidden slot, whatever value stood there.

    scores: (batch, q_heads, q_len, k_len). Raises InputError where the mask does not broadcast to them. Rules:
    `mask.bool`, `mask.additive`, `mask.broadcast`, `mask.combine`, `mask.causal-upper-left`, `key-lengths.visible`,
    `window.bounds`.
    """
    hidden = torch.zeros_like(scores, dtype=torch.bool)  # (batch, q_heads, q_len, k_len)
    if attn_mask is not None:
        mask = broadcast_mask(attn_mask, scores.shape)
        if mask.dtype == torch.bool:
            hidden = ~mask
        else:
            hidden = mask == -torch.inf
            scores = scores + mask
    if is_causal:
        hidden = hidden | torch.ones_like(hidden).triu(1)  # j > i
    if window_size is not None:
        left, right = window_size
        before = torch.ones_like(hidden).tril(-left - 1) if left >= 0 else False  # j < i - left
        after = torch.ones_like(hidden).triu(right + 1) if right >= 0 else False  # j > i + right
        hidden = hidden | before | after
    if key_lengths is not None:
        hidden = hidden | past_the_end(key_lengths, scores.shape[-1])[:, None, None, :]
    return scores.masked_fill(hidden, -torch.inf)


def dropped(weights: torch.Tensor, dropout_p: float) -> torch.Tensor:
    """Return the weights after inverted dropout: w / (1 - dropout_p) where kept, 0 where dropped.

    weights: (batch, q_heads, q_len, k_len); one draw from torch's generator for each. Rules: `dropout.inverted`,
    `dropout.rate`, `dropout.seed`, `dropout.one`. Source: Srivastava et al. 2014, section 10.
    """
    keep = torch.rand(weights.shape, dtype=torch.float64, device=weights.device) >= dropout_p
    factor = 1 / (1 - dropout_p) if dropout_p < 1 else 0.0
    return torch.where(keep, weights * factor, 0.0)


def past_the_end(key_lengths: torch.Tensor, k_len: int) -> torch.Tensor:
    """Return which keys do not exist, bool (batch, k_len): j >= key_lengths[batch]. Rule: `key-lengths.visible`."""
    return torch.arange(k_len, device=key_lengths.device) >= key_lengths[:, None]


def broadcast_mask(attn_mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a view of the mask of the scores' shape. Raises InputError. Rule: `mask.broadcast`."""
    try:
        return attn_mask.expand(shape)
    except RuntimeError:
        raise InputError(f"attn_mask {tuple(attn_mask.shape)} does not broadcast to {tuple(shape)}") from None


def check_call(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    enable_gqa: bool,
    key_lengths: torch.Tensor | None = None,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
) -> None:
    """Raise InputError for tensors that do not fit, where torch operations would broadcast or convert in silence.

    Shapes as in `attnspec.spec.call.Call`. Rules: `notation.shapes`, `notation.dtypes`,
    `mask.additive`, `grouped.heads-divide`, `key-lengths.range`, `window.range`, `softcap.range`, `contract.refusal`.
    """
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.ndim == key.ndim == value.ndim == 4:
        raise InputError(f"{shapes}: use (batch, heads, length, dim)")
    if not query.dtype == key.dtype == value.dtype or not query.dtype.is_floating_point:
        raise InputError(f"query {query.dtype}, key {key.dtype}, value {value.dtype}: use one floating dtype")
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, query.dtype):
        raise InputError(f"attn_mask {attn_mask.dtype}: use torch.bool or the query's dtype, {query.dtype}")
    if key.shape[:3] != value.shape[:3] or key.shape[3] != query.shape[3]:
        raise InputError(f"{shapes}: key and value differ in batch, heads or length, or query and key in head_dim")
    if key.shape[0] not in (1, query.shape[0]):
        raise InputError(f"{shapes}: use a key batch of 1 or that of the query")
    q_heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads == 0 or q_heads % kv_heads or (q_heads != kv_heads and not enable_gqa):
        raise InputError(f"{shapes}: use as many key heads as query heads, or a divisor and enable_gqa=True")
    if key_lengths is not None:
        check_lengths(key_lengths, query.shape[0], key.shape[2])
    if window_size is not None and (len(window_size) != 2 or min(window_size) < -1):
        raise InputError(f"window_size {window_size}: use (left, right), each 0 or more, or -1 for no bound")
    if softcap is not None and not 0 <= softcap < math.inf:
        raise InputError(f"softcap {softcap}: use 0 or more")


def check_dropout(dropout_p: float) -> None:
    """Raise InputError where dropout_p is no probability. Rule: `dropout.range`."""
    if not 0 <= dropout_p <= 1:
        raise InputError(f"dropout_p is {dropout_p}: use a probability from 0 to 1")


def steps(
    alibi_slopes: torch.Tensor,
    shape: torch.Size,
    wide: torch.dtype,
    lower_right: bool = False,
    key_lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return slope times |i + offset - j|, (1 or batch, q_heads, q_len, k_len), computed in the dtype `wide`.

    alibi_slopes: (q_heads,) or (batch, q_heads); shape: of the scores. The offset is 0, or with lower_right the number
    of keys, k_len or key_lengths[batch], less q_len. Raises InputError for another shape or dtype. Rules:
    `alibi.bias`, `alibi.form`, `alibi.offset`, `alibi.shape`. Source: Press et al. 2022, section 3.
    """
    batch, heads, q_len, k_len = shape
    check_slopes(alibi_slopes, batch, heads)
    device = alibi_slopes.device
    rows = torch.arange(q_len, device=device)[:, None]  # (q_len, 1)
    if lower_right:
        end = k_len if key_lengths is None else key_lengths[:, None, None, None]  # (batch, 1, 1, 1)
        rows = rows + (end - q_len)
    distance = (rows - torch.arange(k_len, device=device)).abs()  # (q_len, k_len) or (batch, 1, q_len, k_len)
    return alibi_slopes.to(wide).reshape(-1, heads, 1, 1) * distance


def check_slopes(alibi_slopes: torch.Tensor, batch: int, heads: int) -> None:
    """Raise InputError unless slopes are floating numbers, one a query head, or one a batch element and query head.
    Rule: `alibi.shape`."""
    if tuple(alibi_slopes.shape) not in ((heads,), (batch, heads)) or not alibi_slopes.dtype.is_floating_point:
        given = f"{alibi_slopes.dtype} {tuple(alibi_slopes.shape)}"
        raise InputError(f"alibi_slopes {given}: use floating numbers, ({heads},) or ({batch}, {heads})")


def check_sinks(sinks: torch.Tensor | None, q_heads: int) -> None:
    """Raise InputError unless sinks is None or one floating number a query head. Rule: `sinks.shape`."""
    if sinks is not None and (sinks.shape != (q_heads,) or not sinks.dtype.is_floating_point):
        raise InputError(f"sinks {sinks.dtype} {tuple(sinks.shape)}: use one floating number a head, ({q_heads},)")


def check_lengths(key_lengths: torch.Tensor, batch: int, k_len: int) -> None:
    """Raise InputError unless key_lengths is (batch,), int32 or int64, each 0 to k_len. Rule: `key-lengths.range`."""
    if key_lengths.dtype not in (torch.int32, torch.int64) or key_lengths.shape != (batch,):
        raise InputError(f"key_lengths {key_lengths.dtype} {tuple(key_lengths.shape)}: use int32 or int64, ({batch},)")
    if ((key_lengths < 0) | (key_lengths > k_len)).any():
        raise InputError(f"key_lengths {key_lengths.tolist()}: use 0 to {k_len}")


backend = TorchEager()
alibi_lower_right = TorchEager("torch_eager.alibi_lower_right", "lower_right")
