"""First pass: maximum and sum over tiles of keys. Second pass: finished weights, summed into the output at once."""

import torch
from honest_parts import hide, inputs, result

TILE = 20


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    top = q.new_full((*q.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(top)
    tiles = [slice(start, start + TILE) for start in range(0, k.shape[2], TILE)]
    for tile in tiles:
        new_top = torch.maximum(top, scores[..., tile].amax(-1, keepdim=True))
        safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
        total = total * (top - safe).exp() + (scores[..., tile] - safe).exp().sum(-1, keepdim=True)
        top = new_top
    safe = top.masked_fill(top == -torch.inf, 0.0)
    output = q.new_zeros((*q.shape[:3], v.shape[-1]))
    for tile in tiles:
        weights = (scores[..., tile] - safe).exp() / total.masked_fill(total == 0, 1.0)
        output = output + weights @ v[:, :, tile]
    return result(output, (safe + total.log()).squeeze(-1), query, return_lse)
