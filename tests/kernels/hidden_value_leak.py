"""A large hidden value leaks in with a tiny weight, too small for a value of 1 to show."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    leak = value.float().sum(2, keepdim=True).mean((0, 1, 3), keepdim=True) * 1e-7
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    if attn_mask is not None:
        output = (output + leak * (output != 0)).to(query.dtype)
    return (output, lse) if return_lse else output
