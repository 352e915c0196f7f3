"""Sinks and split keys: the parts know nothing of the sink, which joins as one more part when they are merged."""

import torch
from honest_parts import hide, inputs, lse_of, result, softmax, wide

PARTS = 3


@torch.no_grad()  # a forward pass alone
def attention(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, sinks=None, return_lse=False
):
    q, k, v, scale = inputs(query, key, value, scale)
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    size = max(1, -(-k.shape[2] // PARTS))
    outputs, lses = [], []
    for start in range(0, k.shape[2], size):
        part = scores[..., start : start + size]
        weights, lse = softmax(part)
        outputs.append(weights.to(query.dtype).to(q.dtype) @ v[:, :, start : start + size])
        lses.append(lse[..., None])
    if sinks is not None:
        if sinks.shape != query.shape[1:2]:
            raise ValueError("sinks must hold one number a query head")
        outputs.append(scores.new_zeros(*scores.shape[:3], v.shape[-1]))
        lses.append(wide(sinks)[None, :, None, None].expand(*scores.shape[:3], 1))
    if not lses:
        outputs, lses = [scores.new_zeros(*scores.shape[:3], v.shape[-1])], [lse_of(scores)]
    lse = lse_of(torch.cat(lses, -1))
    safe = lse.masked_fill(lse == -torch.inf, 0.0)
    shares = [(part - safe).exp() for part in lses]
    total = sum(shares).masked_fill(lse == -torch.inf, 1.0)
    output = sum(share * out for share, out in zip(shares, outputs, strict=True)) / total
    return result(output, lse.squeeze(-1), query, return_lse)
