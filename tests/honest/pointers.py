"""As a kernel in C reads memory: every element by its offset from the start of the storage, strides and all."""

import torch


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
    group = heads // key.shape[1]
    output = torch.zeros(batch, heads, q_len, value_dim, dtype=query.dtype)
    lse = torch.full((batch, heads, q_len), -torch.inf, dtype=wide)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
    for b in range(batch):
        kv_batch = b if key.shape[0] == batch else 0
        for h in range(heads):
            kv_head = h // group
            q = matrix(query, b, h).to(wide)
            k = matrix(key, kv_batch, kv_head).to(wide)
            v = matrix(value, kv_batch, kv_head).to(wide)
            scores = q @ k.T * scale
            if attn_mask is not None:
                tile = matrix(attn_mask, b, h)
                scores = scores.masked_fill(~tile, -torch.inf) if tile.dtype == torch.bool else scores + tile.to(wide)
            if is_causal:
                scores = scores.masked_fill(torch.ones(q_len, k_len, dtype=torch.bool).triu(1), -torch.inf)
            if k_len == 0:
                continue
            top = scores.amax(-1, keepdim=True)
            top = top.masked_fill(top == -torch.inf, 0.0)
            weights = torch.exp(scores - top)
            total = weights.sum(-1, keepdim=True)
            output[b, h] = (weights @ v / total.masked_fill(total == 0, 1.0)).to(query.dtype)
            lse[b, h] = (top + torch.log(total)).squeeze(-1)
    return (output, lse) if return_lse else output


def matrix(x, b, h):
    """Return the rows and columns of one head of one batch element, read element by element."""
    rows, columns = x.shape[-2:]
    batch_stride, head_stride, row_stride, column_stride = x.stride()
    base = x.storage_offset() + b * batch_stride + h * head_stride
    offsets = base + torch.arange(rows)[:, None] * row_stride + torch.arange(columns) * column_stride
    size = x.untyped_storage().nbytes() // x.element_size()
    memory = torch.as_strided(x, (size,), (1,), 0)
    return memory[offsets]
