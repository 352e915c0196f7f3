"""Dropout in flash attention: a seed is drawn once a call and each tile of keys has a stream of its own, the sum of a
row is that of all weights, and the factor goes on the output at the end."""

import torch
from honest_parts import hide, inputs, result

TILE = 24


def attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    return_lse=False,
):
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p is {dropout_p}: use a probability from 0 to 1")
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    seed = int(torch.randint(2**48, ())) if dropout_p > 0 else 0
    top = q.new_full((*q.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(top)
    acc = q.new_zeros((*q.shape[:3], v.shape[-1]))
    for number, start in enumerate(range(0, k.shape[2], TILE)):
        tile = slice(start, start + TILE)
        new_top = torch.maximum(top, scores[..., tile].amax(-1, keepdim=True))
        safe = new_top.masked_fill(new_top == -torch.inf, 0.0).detach()
        weights, rescale = (scores[..., tile] - safe).exp(), (top - safe).exp()
        total = total * rescale + weights.sum(-1, keepdim=True)
        if dropout_p > 0:
            stream = torch.Generator().manual_seed(seed + number)
            weights = weights * (torch.rand(weights.shape, generator=stream) >= dropout_p)
        acc = acc * rescale + weights @ v[:, :, tile]
        top = new_top.detach()
    factor = 1 / (1 - dropout_p) if dropout_p < 1 else 0.0
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    lse = (top + total.log()).masked_fill(empty, -torch.inf).squeeze(-1)
    return result(acc * factor / total, lse, query, return_lse)
