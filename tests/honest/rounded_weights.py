"""The finished weights, rounded once to the storage dtype before they meet the values: class fused."""

import torch
from honest_parts import hide, inputs, result, softmax


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    weights, lse = softmax(hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal))
    return result(weights.to(query.dtype).to(q.dtype) @ v, lse, query, return_lse)
