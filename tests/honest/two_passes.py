"""First pass: the lse over tiles of keys. Second pass: weights exp(score - lse), summed into the output at once."""

import torch
from honest_parts import hide, inputs, lse_of, result

TILE = 20


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    lse = q.new_full((*q.shape[:3], 1), -torch.inf)
    for tile in scores.split(TILE, -1):
        lse = torch.logaddexp(lse, lse_of(tile))
    safe = lse.masked_fill(lse == -torch.inf, 0.0)
    output = q.new_zeros((*q.shape[:3], v.shape[-1]))
    for tile, values in zip(scores.split(TILE, -1), v.split(TILE, -2), strict=True):
        output = output + (tile - safe).exp() @ values
    return result(output, lse.squeeze(-1), query, return_lse)
