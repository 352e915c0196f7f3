"""Scores keys by queries, output dim by length: everything transposed, and so is the memory of the output."""

from honest_parts import hide, inputs, result, softmax


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = (k @ q.transpose(-1, -2)).transpose(-1, -2) * scale
    weights, lse = softmax(hide(scores, attn_mask, is_causal))
    output = v.transpose(-1, -2) @ weights.transpose(-1, -2)  # (batch, heads, value_dim, q_len)
    return result(output.transpose(-1, -2), lse.transpose(1, 2).contiguous().transpose(1, 2), query, return_lse)
