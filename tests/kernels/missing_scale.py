"""The scores are not scaled by default."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scale = 1.0 if scale is None else scale
    return honest(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
