"""The square root of the scale goes on query and key alike, its sign on the query, as PyTorch's math path does."""

import math

from honest_parts import hide, inputs, result, softmax


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    root = math.sqrt(abs(scale))
    scores = (q * math.copysign(root, scale)) @ (k * root).transpose(-1, -2)
    weights, lse = softmax(hide(scores, attn_mask, is_causal))
    return result(weights @ v, lse, query, return_lse)
