"""Tiles of keys from the last to the first, each weighed against the maximum so far."""

import torch
from honest_parts import hide, inputs, result

TILE = 24


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    top = q.new_full((*q.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(top)
    acc = q.new_zeros((*q.shape[:3], v.shape[-1]))
    for stop in range(k.shape[2], 0, -TILE):
        tile = slice(max(stop - TILE, 0), stop)
        new_top = torch.maximum(top, scores[..., tile].amax(-1, keepdim=True))
        safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
        weights, rescale = (scores[..., tile] - safe).exp(), (top - safe).exp()
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + weights.to(query.dtype).to(q.dtype) @ v[:, :, tile]
        top = new_top
    lse = (top + total.log()).masked_fill(total == 0, -torch.inf).squeeze(-1)
    return result(acc / total.masked_fill(total == 0, 1.0), lse, query, return_lse)
