"""A window as two more masks over the whole score matrix, beside the causal triangle, masks and key lengths."""

import torch


def attention(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    key_lengths=None,
    window_size=None,
    return_lse=False,
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    batch, heads, q_len, head_dim = query.shape
    k_len = key.shape[2]
    lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths
    if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
        raise ValueError("key_lengths must be one int32 or int64 a batch element")
    if ((lengths < 0) | (lengths > k_len)).any():
        raise ValueError("a key length is below 0 or beyond the keys")
    left, right = (-1, -1) if window_size is None else window_size
    if left < -1 or right < -1:
        raise ValueError("a side of the window is below -1")
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scale = head_dim**-0.5 if scale is None else scale
    group = heads // key.shape[1]
    exists = torch.arange(k_len) < lengths[:, None]
    key, value = (torch.where(exists[:, None, :, None], x, 0.0) for x in (key, value))
    key, value = (x.repeat_interleave(group, dim=1).to(wide) for x in (key, value))
    scores = query.to(wide) @ key.transpose(-1, -2) * scale
    visible = exists[:, None, None, :].expand(scores.shape)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(scores.shape)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask.to(wide)
    distance = torch.arange(k_len) - torch.arange(q_len)[:, None]
    if is_causal:
        visible = visible & (distance <= 0)
    if left >= 0:
        visible = visible & (distance >= -left)
    if right >= 0:
        visible = visible & (distance <= right)
    scores = scores.masked_fill(~visible, -torch.inf)
    top = torch.cat([scores, scores.new_full((*scores.shape[:-1], 1), -torch.inf)], -1).amax(-1, keepdim=True).detach()
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    lse = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)
    output = ((weights / total) @ value).to(query.dtype)
    return (output, lse) if return_lse else output
