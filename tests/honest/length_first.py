"""(batch, length, heads, dim) inside, as flash-attention's interface has it; the output is a view of it."""

import torch
from honest_parts import hide, inputs, result, softmax


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))  # (batch, length, heads, dim)
    k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    weights, lse = softmax(hide(scores, attn_mask, is_causal))
    output = torch.einsum("bhij,bjhd->bihd", weights, v)
    return result(output.transpose(1, 2), lse, query, return_lse)
