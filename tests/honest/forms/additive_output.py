"""Additive attention in the storage dtype throughout, a class eager function that returns the output alone."""

import torch


def target(query, key, value, w_q, w_k, v_a, *, attn_mask=None, is_causal=False):
    scores = torch.tanh((query @ w_q.T)[..., :, None, :] + (key @ w_k.T)[..., None, :, :]) @ v_a
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = hidden | ~attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
        hidden = hidden | (attn_mask == -torch.inf)
    if is_causal:
        hidden = hidden | torch.ones_like(hidden).triu(1)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
    return weights.masked_fill(hidden.all(-1, keepdim=True), 0.0) @ value
