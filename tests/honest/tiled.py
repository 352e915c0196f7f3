"""Flash attention: tiles of keys, a running maximum, weights rounded once to the storage dtype."""

import torch

Q_TILE = 32
K_TILE = 32


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
    key = key.expand(batch, -1, -1, -1)
    value = value.expand(batch, -1, -1, -1)
    output = query.new_full((batch, heads, q_len, value_dim), torch.nan)
    lse = torch.full((batch, heads, q_len), torch.nan, dtype=wide)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batch, heads, q_len, k_len)
    for b in range(batch):
        for h in range(heads):
            k_head, v_head = key[b, h // group], value[b, h // group]
            for row in range(0, q_len, Q_TILE):
                rows = torch.arange(row, min(row + Q_TILE, q_len))
                q_tile = query[b, h, rows].to(wide)
                top = torch.full((len(rows), 1), -torch.inf, dtype=wide)
                total = torch.zeros(len(rows), 1, dtype=wide)
                acc = torch.zeros(len(rows), value_dim, dtype=wide)
                stop = min(k_len, int(rows[-1]) + 1) if is_causal else k_len
                for start in range(0, stop, K_TILE):
                    keys = torch.arange(start, min(start + K_TILE, k_len))
                    k_tile, v_tile = k_head[keys].to(wide), v_head[keys]
                    scores = q_tile @ k_tile.T
                    scores = scores * scale
                    if attn_mask is not None:
                        tile_mask = attn_mask[b, h][rows][:, keys]
                        if attn_mask.dtype == torch.bool:
                            scores = scores.masked_fill(~tile_mask, -torch.inf)
                        else:
                            scores = scores + tile_mask.to(wide)
                    if is_causal:
                        scores = scores.masked_fill(keys > rows[:, None], -torch.inf)
                    new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
                    safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
                    weights = torch.exp(scores - safe)
                    rescale = torch.exp(top - safe)
                    total = total * rescale + weights.sum(-1, keepdim=True)
                    weights = weights.to(query.dtype).to(wide)
                    acc = acc * rescale + weights @ v_tile.to(wide)
                    top = new_top
                empty = total == 0
                output[b, h, rows] = (acc / total.masked_fill(empty, 1.0)).to(query.dtype)
                lse[b, h, rows] = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)
    return (output, lse) if return_lse else output
