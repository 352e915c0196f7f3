"""The output stays in the dtype of the accumulator."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    return (output.double(), lse) if return_lse else output.double()
