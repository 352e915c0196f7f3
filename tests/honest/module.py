"""A torch.nn.Module, and gradients that flow: the result of the call is part of the graph."""

import torch
from honest_parts import hide, inputs, result, softmax


class Attention(torch.nn.Module):
    """Attention without parameters."""

    def forward(
        self, query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False
    ):
        q, k, v, scale = inputs(query, key, value, scale)
        weights, lse = softmax(hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal))
        return result(weights @ v, lse, query, return_lse)


attention = Attention()
