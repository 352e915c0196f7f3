"""The query is scaled in place."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    query *= query.shape[-1] ** -0.5 if scale is None else scale
    return honest(query, key, value, attn_mask, is_causal, 1.0, return_lse=return_lse)
