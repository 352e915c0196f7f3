"""Online softmax, one key at a time: the running maximum, sum and output of Milakov and Gimelshein."""

import torch


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
    query_wide = query.to(wide)
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).to(wide)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).to(wide)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], k_len)
    top = torch.full((*query.shape[:3], 1), -torch.inf, dtype=wide)
    total = torch.zeros_like(top)
    acc = torch.zeros(*query.shape[:3], value_dim, dtype=wide)
    for j in range(k_len):
        score = (query_wide * key[:, :, j : j + 1]).sum(-1, keepdim=True) * scale
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            score = score.masked_fill(~attn_mask[..., j : j + 1], -torch.inf)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            score = score + attn_mask[..., j : j + 1].to(wide)
        if is_causal:
            score = score.masked_fill(torch.arange(q_len)[:, None] < j, -torch.inf)
        new_top = torch.maximum(top, score)
        safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
        rescale = torch.exp(top - safe)
        weight = torch.exp(score - safe)
        total = total * rescale + weight
        acc = acc * rescale + weight * value[:, :, j : j + 1]
        top = new_top
    empty = total == 0
    output = (acc / total.masked_fill(empty, 1.0)).to(query.dtype)
    lse = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)
    return (output, lse) if return_lse else output
