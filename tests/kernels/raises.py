"""Lengths that are no multiple of 16 are refused."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if query.shape[2] % 16:
        raise ValueError("q_len must be a multiple of 16")
    return honest(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
