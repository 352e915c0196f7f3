"""Sinks as one more column of the score matrix, dropped after the softmax; gradients by autograd."""

import torch
from honest_parts import hide, inputs, softmax, wide


def attention(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, sinks=None, return_lse=False
):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    if sinks is not None:
        if sinks.shape != query.shape[1:2]:
            raise ValueError("sinks must hold one number a query head")
        column = wide(sinks)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights, lse = softmax(scores)
    if sinks is not None:
        weights = weights[..., :-1]
    output = (weights @ v).to(query.dtype)
    return (output, lse) if return_lse else output
