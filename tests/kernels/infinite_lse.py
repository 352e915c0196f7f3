"""The lse of a row that sees no key is +inf."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    return (output, lse.masked_fill(lse.isneginf(), float("inf"))) if return_lse else output
