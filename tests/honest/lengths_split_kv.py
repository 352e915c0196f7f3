"""Flash-decoding over a cache: the storage in parts of fixed size, those beyond a length empty, merged one by one."""

import torch

PART = 24


@torch.no_grad()  # a forward pass alone
def attention(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, key_lengths=None, return_lse=False
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, heads, q_len, head_dim = query.shape
    k_len, value_dim = value.shape[-2:]
    lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths
    if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
        raise ValueError("key_lengths must be one int32 or int64 a batch element")
    if any(not 0 <= length <= k_len for length in lengths.tolist()):
        raise ValueError("a key length is below 0 or beyond the keys")
    scale = head_dim**-0.5 if scale is None else scale
    group = heads // key.shape[1]
    key = key.repeat_interleave(group, dim=1)
    value = value.repeat_interleave(group, dim=1)
    exists = (torch.arange(k_len) < lengths[:, None])[:, None, :, None]
    key = torch.where(exists, key, 0.0)
    value = torch.where(exists, value, 0.0)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
    output = torch.zeros(batch, heads, q_len, value_dim, dtype=wide)
    lse = torch.full((batch, heads, q_len, 1), -torch.inf, dtype=wide)
    for start in range(0, k_len, PART):
        keys = torch.arange(start, min(start + PART, k_len))
        scores = query.to(wide) @ key[:, :, keys].to(wide).transpose(-1, -2)
        scores = scores * scale
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask[..., keys], -torch.inf)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            scores = scores + attn_mask[..., keys].to(wide)
        if is_causal:
            scores = scores.masked_fill(keys > torch.arange(q_len)[:, None], -torch.inf)
        scores = scores.masked_fill(~exists[:, :, keys].transpose(-1, -2), -torch.inf)
        top = scores.amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)
        weights = torch.exp(scores - top)
        total = weights.sum(-1, keepdim=True)
        part_output = weights @ value[:, :, keys].to(wide) / total.masked_fill(total == 0, 1.0)
        part_lse = top + torch.log(total)
        larger = torch.maximum(lse, part_lse)
        safe = larger.masked_fill(larger == -torch.inf, 0.0)
        before, after = torch.exp(lse - safe), torch.exp(part_lse - safe)
        both = before + after
        output = (output * before + part_output * after) / both.masked_fill(both == 0, 1.0)
        lse = safe + torch.log(both)
    output = output.to(query.dtype)
    lse = lse.squeeze(-1)
    return (output, lse) if return_lse else output
