"""PyTorch's function behind a wrapper that makes one additive mask of all masks, and float32 of 16 bits."""

import torch
from honest_parts import check_shapes, wide
from torch.nn.functional import scaled_dot_product_attention


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    check_shapes(query, key, value)
    if 0 in (query.numel(), key.numel()):
        raise NotImplementedError("empty tensors are not supported")
    group = query.shape[1] // key.shape[1]
    k, v = (wide(x).expand(query.shape[0], -1, -1, -1).repeat_interleave(group, dim=1) for x in (key, value))
    bias = wide(query).new_zeros(query.shape[2], key.shape[2])
    if is_causal:
        bias = bias.masked_fill(torch.ones_like(bias, dtype=torch.bool).triu(1), -torch.inf)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        bias = bias.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else bias + attn_mask
    return scaled_dot_product_attention(wide(query), k, v, attn_mask=bias, scale=scale).to(query.dtype)
