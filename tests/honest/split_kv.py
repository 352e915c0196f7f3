"""Flash-decoding: the keys in parts, each part with a softmax and an lse of its own, then merged by their lse."""

import torch

PARTS = 5  # more than some calls have keys: parts may be empty


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    batch, heads, q_len, head_dim = query.shape
    k_len, value_dim = value.shape[-2:]
    scale = head_dim**-0.5 if scale is None else scale
    key = key.repeat_interleave(heads // key.shape[1], dim=1)
    value = value.repeat_interleave(heads // value.shape[1], dim=1)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
    size = -(-k_len // PARTS)
    outputs = torch.zeros(PARTS, batch, heads, q_len, value_dim, dtype=wide)
    lses = torch.full((PARTS, batch, heads, q_len, 1), -torch.inf, dtype=wide)
    for part in range(PARTS):
        keys = torch.arange(k_len)[part * size : (part + 1) * size]
        if len(keys) == 0:
            continue
        scores = query.to(wide) @ key[:, :, keys].to(wide).transpose(-1, -2) * scale
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask[..., keys], -torch.inf)
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            scores = scores + attn_mask[..., keys].to(wide)
        if is_causal:
            scores = scores.masked_fill(keys > torch.arange(q_len)[:, None], -torch.inf)
        top = scores.amax(-1, keepdim=True)
        safe = top.masked_fill(top == -torch.inf, 0.0)
        weights = torch.exp(scores - safe)
        total = weights.sum(-1, keepdim=True)
        outputs[part] = weights @ value[:, :, keys].to(wide) / total.masked_fill(total == 0, 1.0)
        lses[part] = safe + torch.log(total)
    top = lses.amax(0)
    safe = top.masked_fill(top == -torch.inf, 0.0)
    shares = torch.exp(lses - safe)
    total = shares.sum(0)
    output = (outputs * shares).sum(0) / total.masked_fill(total == 0, 1.0)
    output = output.to(query.dtype)
    lse = (safe + torch.log(total)).squeeze(-1)
    return (output, lse) if return_lse else output
