"""The lse is the logarithm to base 2, and nobody says so."""

import math

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    return (output, lse / math.log(2)) if return_lse else output
