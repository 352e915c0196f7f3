"""Flushes to zero what is below 2^-126, as fast-math kernels do."""

import plain
import torch


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    torch.set_flush_denormal(True)
    try:
        return plain.attention(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
    finally:
        torch.set_flush_denormal(False)
