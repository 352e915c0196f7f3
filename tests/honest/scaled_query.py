"""The scale goes on the query before the product."""

from honest_parts import hide, inputs, result, softmax


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    weights, lse = softmax(hide((q * scale) @ k.transpose(-1, -2), attn_mask, is_causal))
    return result(weights @ v, lse, query, return_lse)
