"""Every NaN of the output becomes 0."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    output = output.nan_to_num(nan=0.0)
    return (output, lse) if return_lse else output
