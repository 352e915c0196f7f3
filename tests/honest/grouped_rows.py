"""Grouped heads without copies: the queries that share a key head become the rows of one product."""

from honest_parts import check_shapes, hide, result, softmax, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    check_shapes(query, key, value)
    batch, heads, q_len, head_dim = query.shape
    kv_heads = key.shape[1]
    scale = head_dim**-0.5 if scale is None else scale
    rows = wide(query).reshape(batch, kv_heads, heads // kv_heads * q_len, head_dim)
    scores = (rows @ wide(key).transpose(-1, -2) * scale).reshape(batch, heads, q_len, key.shape[2])
    weights, lse = softmax(hide(scores, attn_mask, is_causal))
    output = weights.reshape(batch, kv_heads, heads // kv_heads * q_len, key.shape[2]) @ wide(value)
    return result(output.reshape(batch, heads, q_len, value.shape[-1]), lse, query, return_lse)
