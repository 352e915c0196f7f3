"""Powers of 2 instead of e: differences from the maximum are turned to base 2, so that no finite bias overflows."""

import math

import torch

LOG2_E = math.log2(math.e)
K_TILE = 48


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    q_len, head_dim = query.shape[-2:]
    k_len, value_dim = value.shape[-2:]
    scale = head_dim**-0.5 if scale is None else scale
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], k_len)
    top = torch.full((*query.shape[:3], 1), -torch.inf, dtype=wide)
    total = torch.zeros_like(top)
    acc = torch.zeros(*query.shape[:3], value_dim, dtype=wide)
    for start in range(0, k_len, K_TILE):
        keys = torch.arange(start, min(start + K_TILE, k_len))
        scores = query.to(wide) @ key[:, :, keys].to(wide).transpose(-1, -2) * scale
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask[..., keys], -torch.inf)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            scores = scores + attn_mask[..., keys].to(wide)
        if is_causal:
            scores = scores.masked_fill(keys > torch.arange(q_len)[:, None], -torch.inf)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
        rescale = torch.exp2((top - safe) * LOG2_E)
        weights = torch.exp2((scores - safe) * LOG2_E)
        total = total * rescale + weights.sum(-1, keepdim=True)
        acc = acc * rescale + weights.to(query.dtype).to(wide) @ value[:, :, keys].to(wide)
        top = new_top
    empty = total == 0
    output = (acc / total.masked_fill(empty, 1.0)).to(query.dtype)
    lse = (top + torch.log2(total) / LOG2_E).masked_fill(empty, -torch.inf).squeeze(-1)
    return (output, lse) if return_lse else output
