"""Attention with a given dropout mask in float32, float64 for float64."""

import torch


def target(query, key, value, *, keep, dropout_p, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    group = query.shape[1] // key.shape[1]
    key, value = (x.to(wide).repeat_interleave(group, 1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.to(wide) @ key.transpose(-1, -2) * scale  # (batch, q_heads, q_len, k_len)
    if attn_mask is not None:
        bias = attn_mask.to(wide) if attn_mask.dtype != torch.bool else torch.where(attn_mask, 0.0, -torch.inf)
        scores = scores + bias
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    lse = torch.logsumexp(scores.masked_fill(empty, 0.0), -1).masked_fill(empty.squeeze(-1), -torch.inf)
    factor = 1 / (1 - dropout_p) if dropout_p < 1 else 0.0
    dropped = torch.where(keep, weights * factor, 0.0)
    output = dropped @ value
    return output.to(dtype), lse
