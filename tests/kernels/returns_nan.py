"""The rows of the last, incomplete tile are never written."""

import torch
from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    output[:, :, query.shape[2] // 16 * 16 :] = torch.nan
    return (output, lse) if return_lse else output
