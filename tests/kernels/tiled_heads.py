"""Query head i reads key head i modulo their number, not i divided by the group."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat(1, repeats, 1, 1) for x in (key, value))
    return honest(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
