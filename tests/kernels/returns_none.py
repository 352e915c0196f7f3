"""A return is forgotten."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    honest(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
