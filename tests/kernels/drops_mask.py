"""With is_causal the attn_mask is dropped."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    mask = None if is_causal else attn_mask
    return honest(query, key, value, mask, is_causal, scale, return_lse=return_lse)
