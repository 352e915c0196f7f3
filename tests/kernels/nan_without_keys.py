"""Without keys the sum of weights is 0 and the output 0/0."""

import torch
from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    if key.shape[2] == 0:
        output = torch.full_like(output, torch.nan)
    return (output, lse) if return_lse else output
