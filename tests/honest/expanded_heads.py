"""Heads and batches expanded, torch's own softmax, and autograd: empty rows are taken out before the softmax."""

import torch


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    if key.shape[2] == 0:
        raise NotImplementedError("no keys are not supported")
    wide = torch.promote_types(query.dtype, torch.float32)
    batch, heads, q_len, head_dim = query.shape
    k_len = key.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    key, value = (
        x.to(wide)[:, :, None].expand(batch, -1, heads // key.shape[1], -1, -1).flatten(1, 2) for x in (key, value)
    )
    scores = query.to(wide) @ key.transpose(-1, -2) * scale
    visible = torch.ones(batch, heads, q_len, k_len, dtype=torch.bool)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
        visible = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
        scores = scores if attn_mask.dtype == torch.bool else scores + attn_mask
    if is_causal:
        visible = visible & torch.ones(q_len, k_len, dtype=torch.bool).tril()
    empty = ~visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(empty, 0.0)
    weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
    lse = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), -torch.inf)
    output = (weights @ value).to(query.dtype)
    return (output, lse) if return_lse else output
