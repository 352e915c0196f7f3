"""Grouped heads as an index of their own, in Einstein's notation."""

import torch
from honest_parts import check_shapes, hide, result, softmax, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    check_shapes(query, key, value)
    batch, scale = query.shape[0], query.shape[-1] ** -0.5 if scale is None else scale
    q = wide(query).unflatten(1, (key.shape[1], -1))  # (batch, kv_heads, group, q_len, head_dim)
    k, v = (wide(x).expand(batch, -1, -1, -1) for x in (key, value))
    scores = torch.einsum("bhgid,bhjd->bhgij", q, k).flatten(1, 2) * scale
    weights, lse = softmax(hide(scores, attn_mask, is_causal))
    output = torch.einsum("bhgij,bhjc->bhgic", weights.unflatten(1, (key.shape[1], -1)), v)
    return result(output.flatten(1, 2), lse, query, return_lse)
