"""A scale of 0 is taken for not given."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    return honest(query, key, value, attn_mask, is_causal, scale or None, return_lse=return_lse)
