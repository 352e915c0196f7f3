"""Writes into a buffer of its own with room between the rows, and returns a view of it."""

import plain
import torch


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    output, lse = plain.attention(query, key, value, attn_mask, is_causal, scale, return_lse=True)
    batch, heads, q_len, value_dim = output.shape
    room = output.new_full((q_len, batch, heads, value_dim + 3), 7.0)
    room[..., 1:-2] = output.permute(2, 0, 1, 3)
    view = room.permute(1, 2, 0, 3)[..., 1:-2]
    return (view, lse) if return_lse else view
