"""A function of the parameters, around PyTorch's scaled_dot_product_attention."""

import torch
from torch.nn.functional import linear, scaled_dot_product_attention


def target(query, key, value, mask=None, *, parameters, num_heads, num_kv_heads=None):
    groups = num_kv_heads or num_heads

    def heads(tokens, layer, count):
        projected = linear(tokens, parameters[f"{layer}.weight"], parameters.get(f"{layer}.bias"))
        return projected.unflatten(-1, (count, -1)).transpose(1, 2)  # (batch, count, length, dim)

    visible = None if mask is None else mask != 0
    query, key, value = heads(query, "w_q", num_heads), heads(key, "w_k", groups), heads(value, "w_v", groups)
    attended = scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=groups < num_heads)
    if visible is not None:
        attended = torch.where(visible.any(-1, keepdim=True), attended, 0.0)
    return linear(attended.transpose(1, 2).flatten(2), parameters["w_o.weight"], parameters.get("w_o.bias"))
