"""One sequence of the batch at a time, its storage and its mask cut to the keys that exist."""

import torch


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
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
    output = torch.zeros(batch, heads, q_len, value_dim, dtype=query.dtype)
    lse = torch.full((batch, heads, q_len), -torch.inf, dtype=wide)
    for b, length in enumerate(lengths.tolist()):
        if length == 0 or q_len == 0:
            continue
        stored = b if key.shape[0] == batch else 0
        own_key = key[stored, :, :length].to(wide).repeat_interleave(group, dim=0)
        own_value = value[stored, :, :length].to(wide).repeat_interleave(group, dim=0)
        scores = query[b].to(wide) @ own_key.transpose(-1, -2) * scale
        hidden = torch.zeros(heads, q_len, length, dtype=torch.bool)
        if attn_mask is not None:
            own_mask = attn_mask[b, :, :, :length]
            hidden = ~own_mask if own_mask.dtype == torch.bool else own_mask == -torch.inf
            scores = scores if own_mask.dtype == torch.bool else scores + own_mask.to(wide)
        if is_causal:
            hidden = hidden | torch.ones(q_len, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
        empty = hidden.all(-1, keepdim=True)
        weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
        output[b] = (weights @ own_value).to(query.dtype)
        lse[b] = torch.logsumexp(scores, -1).masked_fill(empty.squeeze(-1), -torch.inf)
    return (output, lse) if return_lse else output
