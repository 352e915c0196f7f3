"""NumPy inside: the tensors are turned into arrays and back."""

import numpy as np
import torch
from honest_parts import check_shapes, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    check_shapes(query, key, value)
    q, k, v = (wide(x).numpy() for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = (q @ k.swapaxes(-1, -2) * scale).astype(q.dtype)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(scores.shape)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = np.where(attn_mask.numpy(), scores, -np.inf)
    elif attn_mask is not None:
        scores = scores + wide(attn_mask).numpy()
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = torch.from_numpy((top + np.log(total))[..., 0].astype(q.dtype))
    output = torch.from_numpy((weights @ v / np.where(total == 0, 1, total)).astype(q.dtype)).to(query.dtype)
    return (output, lse) if return_lse else output
