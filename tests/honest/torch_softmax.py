"""The kernel of the README: torch.softmax, then 0 for the rows that see nothing."""

import torch
from honest_parts import check_shapes


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    check_shapes(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.to(wide) @ key.to(wide).transpose(-1, -2) * scale
    if attn_mask is not None:
        attn_mask = attn_mask.expand(scores.shape)
        floats = attn_mask.dtype.is_floating_point
        scores = scores + attn_mask if floats else scores.masked_fill(~attn_mask, -torch.inf)
    if is_causal:
        triangle = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~triangle, -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
    return (weights @ value.to(wide)).to(query.dtype)
