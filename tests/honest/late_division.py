"""Weights are rounded before the division, to the storage dtype; the sum of the unrounded ones divides at the end."""

import torch
from honest_parts import hide, inputs, lse_of, result


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    lse = lse_of(scores)
    if k.shape[2] == 0:
        return result(q.new_zeros((*q.shape[:3], v.shape[-1])), lse.squeeze(-1), query, return_lse)
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top.masked_fill(top == -torch.inf, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    output = weights.to(query.dtype).to(q.dtype) @ v / total.masked_fill(total == 0, 1.0)
    return result(output, lse.squeeze(-1), query, return_lse)
