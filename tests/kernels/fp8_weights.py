"""The weights are rounded to eight bits before they meet the values."""

import torch
from honest import expand_heads, hide, scores_of, softmax, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    weights, lse = softmax(hide(scores_of(query, key, scale), attn_mask, is_causal))
    weights = weights.to(torch.float8_e4m3fn).to(weights.dtype)
    output = (weights @ wide(expand_heads(value, query.shape[1]))).to(query.dtype)
    return (output, lse) if return_lse else output
