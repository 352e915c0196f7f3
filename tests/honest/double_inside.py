"""Float64 inside, whatever comes in; no tiles, no shortcuts."""

import torch
from honest_parts import hide, inputs, result, softmax, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query.double(), key.double(), value.double(), scale)
    bias = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.double()
    weights, lse = softmax(hide(q @ k.transpose(-1, -2) * scale, bias, is_causal))
    return result(weights @ v, lse.to(wide(query).dtype), query, return_lse)
