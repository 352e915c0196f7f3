"""Uneven parts of the keys, merged two by two in an order of its own with logaddexp."""

import torch
from honest_parts import hide, inputs, result, softmax

CUTS = (1, 8, 40, 41)
ORDER = (3, 0, 4, 1, 2)


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    parts = list(zip(scores.tensor_split(CUTS, -1), v.tensor_split(CUTS, -2), strict=True))
    output = q.new_zeros((*q.shape[:3], v.shape[-1]))
    lse = q.new_full((*q.shape[:3], 1), -torch.inf)
    for part in ORDER:
        some, values = parts[part]
        weights, part_lse = softmax(some)
        merged = torch.logaddexp(lse, part_lse[..., None])
        safe = merged.masked_fill(merged == -torch.inf, 0.0)
        output = output * (lse - safe).exp() + weights @ values * (part_lse[..., None] - safe).exp()
        lse = merged
    return result(output, lse.squeeze(-1), query, return_lse)
