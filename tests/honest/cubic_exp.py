"""For 16 bits, 2^x by a cubic polynomial on [0, 1), as FlashAttention-4 does beside the special function unit."""

import torch
from honest_parts import hide, inputs, lse_of, result

LOG2_E = 1.4426950408889634
CUBIC = (0.077119089663028717, 0.227564394474029541, 0.695146143436431885, 1.0)


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    exp2 = cubic_exp2 if query.dtype in (torch.bfloat16, torch.float16) else torch.exp2
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    if k.shape[2] == 0:
        raise NotImplementedError("no keys are not supported")
    top = scores.amax(-1, keepdim=True)
    weights = exp2((scores - top.masked_fill(top == -torch.inf, 0.0)) * LOG2_E)
    total = weights.sum(-1, keepdim=True)
    output = weights.to(query.dtype).to(q.dtype) @ v / total.masked_fill(total == 0, 1.0)
    return result(output, lse_of(scores).squeeze(-1), query, return_lse)


def cubic_exp2(x):
    """2^x for x <= 0, by Horner's scheme on the fraction."""
    x = x.clamp(min=-127.0)
    whole = x.floor()
    a, b, c, d = CUBIC
    fraction = x - whole
    power = ((a * fraction + b) * fraction + c) * fraction + d
    return torch.where(x <= -127.0, 0.0, torch.ldexp(power, whole))
