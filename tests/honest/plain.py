"""The whole score matrix at once, in float32 (float64 for float64)."""

import torch


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    q_len, head_dim = query.shape[-2:]
    k_len = key.shape[-2]
    scale = head_dim**-0.5 if scale is None else scale
    group = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(group, dim=1)
    value = value.repeat_interleave(group, dim=1)
    scores = query.to(wide) @ key.to(wide).transpose(-1, -2)
    scores = scores * scale
    if attn_mask is not None:
        attn_mask = attn_mask.expand(scores.shape)
    visible = torch.ones(q_len, k_len, dtype=torch.bool)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask.to(wide)
    if is_causal:
        visible = visible & (torch.arange(k_len) <= torch.arange(q_len)[:, None])
    scores = scores.masked_fill(~visible, -torch.inf)
    top = torch.cat([scores, scores.new_full((*scores.shape[:-1], 1), -torch.inf)], -1).amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    lse = (top + torch.log(total)).squeeze(-1)
    weights = weights / total.masked_fill(total == 0, 1.0)
    output = weights @ value.to(wide)
    output = output.to(query.dtype)
    return (output, lse) if return_lse else output
