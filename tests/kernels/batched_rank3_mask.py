"""A mask of three dimensions is taken for (batch, q_len, k_len) and loses its heads."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask[:1]
    return honest(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
