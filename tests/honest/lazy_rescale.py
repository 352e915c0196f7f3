"""The maximum is renewed only where it grows by more than 4: FlashAttention-4's rescaling, now and then."""

import torch
from honest_parts import hide, inputs, result

TILE, THRESHOLD = 16, 4.0


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    top = q.new_full((*q.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(top)
    acc = q.new_zeros((*q.shape[:3], v.shape[-1]))
    for start in range(0, k.shape[2], TILE):
        tile = slice(start, start + TILE)
        peak = scores[..., tile].amax(-1, keepdim=True)
        new_top = torch.where(peak > top + THRESHOLD, peak, top)
        safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
        weights, rescale = (scores[..., tile] - safe).exp(), (top - safe).exp()
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + weights @ v[:, :, tile]
        top = new_top
    lse = (top + total.log()).masked_fill(total == 0, -torch.inf).squeeze(-1)
    return result(acc / total.masked_fill(total == 0, 1.0), lse, query, return_lse)
