"""One tensor of biases, -inf where hidden, is what the product is added to (baddbmm)."""

import torch
from honest_parts import inputs, result, softmax


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
    bias = q.new_zeros((*q.shape[:3], k.shape[2]))
    if attn_mask is not None:
        attn_mask = attn_mask.expand(bias.shape)
        bias = bias.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else bias + attn_mask
    if is_causal:
        bias = bias.masked_fill(torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    flat = (x.flatten(0, 1) for x in (bias, q, k.transpose(-1, -2)))
    scores = torch.baddbmm(*flat, alpha=scale).view_as(bias)
    weights, lse = softmax(scores)
    return result(
        torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(*q.shape[:3], v.shape[-1]), lse, query, return_lse
    )
