"""Calls of one shape share an output buffer."""

import torch
from honest import attention as honest

buffers = {}


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = honest(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    buffer = buffers.setdefault((output.shape, output.dtype), torch.empty_like(output))
    buffer.copy_(output)
    return (buffer, lse) if return_lse else buffer
