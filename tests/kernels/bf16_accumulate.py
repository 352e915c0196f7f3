"""The sum over the keys is kept in bfloat16, a tile of 16 keys at a time."""

import torch
from honest import expand_heads, hide, scores_of, softmax, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    weights, lse = softmax(hide(scores_of(query, key, scale), attn_mask, is_causal))
    value = wide(expand_heads(value, query.shape[1]))
    output = torch.zeros((*query.shape[:3], value.shape[3]), dtype=torch.bfloat16)
    for start in range(0, value.shape[2], 16):
        tile = slice(start, start + 16)
        output += (weights[..., tile] @ value[:, :, tile]).bfloat16()
    return (output.to(query.dtype), lse) if return_lse else output.to(query.dtype)
