"""Asked for the lse, only the output comes back."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    return honest(query, key, value, attn_mask, is_causal, scale)
