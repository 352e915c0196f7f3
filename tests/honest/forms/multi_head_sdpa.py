"""A function of the parameters, around PyTorch's scaled_dot_product_attention."""

import torch
from torch.nn.functional import linear, scaled_dot_product_attention


def target(query, key, value, mask=None, *, parameters, num_heads):
    def heads(tokens, layer):
        projected = linear(tokens, parameters[f"{layer}.weight"], parameters.get(f"{layer}.bias"))
        return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # (batch, num_heads, length, dim)

    visible = None if mask is None else mask != 0
    attended = scaled_dot_product_attention(
        heads(query, "w_q"), heads(key, "w_k"), heads(value, "w_v"), attn_mask=visible
    )
    if visible is not None:
        attended = torch.where(visible.any(-1, keepdim=True), attended, 0.0)
    return linear(attended.transpose(1, 2).flatten(2), parameters["w_o.weight"], parameters.get("w_o.bias"))
