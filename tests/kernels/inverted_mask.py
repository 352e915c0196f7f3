"""True means hidden, as in the key_padding_mask of torch.nn.MultiheadAttention."""

import torch
from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    return honest(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
