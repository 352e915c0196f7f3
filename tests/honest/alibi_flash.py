"""Flash attention with ALiBi: each tile of scores loses slope times distance, forward and when computed again."""

import torch

TILE = 32


class Flash(torch.autograd.Function):
    """Tiles of keys and a running maximum; the backward pass computes the weights again from the lse."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, slopes, is_causal, scale):
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        q, k, v = expanded(query, key, value, wide)
        top = torch.full((*q.shape[:3], 1), -torch.inf, dtype=wide)
        total = torch.zeros_like(top)
        acc = torch.zeros(*q.shape[:3], v.shape[-1], dtype=wide)
        for start in range(0, k.shape[2], TILE):
            scores = scores_of(q, k, attn_mask, slopes, is_causal, scale, start)
            new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
            safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
            weights = torch.exp(scores - safe)
            rescale = torch.exp(top - safe)
            total = total * rescale + weights.sum(-1, keepdim=True)
            acc = acc * rescale + weights.to(query.dtype).to(wide) @ v[:, :, start : start + TILE]
            top = new_top
        empty = total == 0
        output = (acc / total.masked_fill(empty, 1.0)).to(query.dtype)
        lse = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)
        ctx.save_for_backward(query, key, value, attn_mask, slopes, output, lse)
        ctx.options = is_causal, scale
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, attn_mask, slopes, output, lse = ctx.saved_tensors
        is_causal, scale = ctx.options
        wide = lse.dtype
        q, k, v = expanded(query, key, value, wide)
        do = grad_output.to(wide)
        delta = (do * output.to(wide)).sum(-1) - grad_lse
        guarded = lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        dbias = torch.zeros(*q.shape[:3], k.shape[2], dtype=wide)
        for start in range(0, k.shape[2], TILE):
            keys = slice(start, start + TILE)
            again = scores_of(q, k, attn_mask, slopes, is_causal, scale, start)
            p = torch.exp(again - guarded)
            dp = do @ v[:, :, keys].transpose(-1, -2)
            ds = p * (dp - delta[..., None])
            dv[:, :, keys] = p.transpose(-1, -2) @ do
            dk[:, :, keys] = scale * (ds.transpose(-1, -2) @ q)
            dq += scale * (ds @ k[:, :, keys])
            dbias[..., keys] = ds
        dk, dv = sum_readers(dk, key.shape), sum_readers(dv, value.shape)
        dmask = None
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            dmask = dbias.sum_to_size(attn_mask.shape).to(attn_mask.dtype)
        return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), dmask, None, None, None


def expanded(query, key, value, wide):
    """Return wide query, key and value, a key head for every query head."""
    batch, heads = query.shape[:2]
    group = heads // key.shape[1]
    k, v = (x.to(wide).expand(batch, -1, -1, -1).repeat_interleave(group, dim=1) for x in (key, value))
    return query.to(wide), k, v


def scores_of(q, k, attn_mask, slopes, is_causal, scale, start):
    """Return the scores of a tile of keys, -inf where hidden."""
    keys = slice(start, start + TILE)
    rows = torch.arange(q.shape[2])[:, None]
    positions = torch.arange(k.shape[2])[keys]
    scores = q @ k[:, :, keys].transpose(-1, -2) * scale
    if slopes is not None:
        distance = (rows - positions).abs()
        slope = slopes.to(scores.dtype)[:, :, None, None]
        scores = scores - slope * distance
    if attn_mask is not None:
        tile_mask = attn_mask.expand(*q.shape[:3], k.shape[2])[..., keys]
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~tile_mask, -torch.inf)
        else:
            scores = scores + tile_mask.to(scores.dtype)
    if is_causal:
        scores = scores.masked_fill(positions > rows, -torch.inf)
    return scores


def sum_readers(grad, shape):
    """Sum what every query head of a group, and every batch entry that shares a key, gives to it."""
    return grad.unflatten(1, (shape[1], -1)).sum(2).sum_to_size(shape)


def attention(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    alibi_slopes=None,
    return_lse=False,
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    if alibi_slopes is not None:
        if tuple(alibi_slopes.shape) not in (tuple(query.shape[1:2]), tuple(query.shape[:2])):
            raise ValueError("alibi_slopes must hold one number a query head, or a batch element and query head")
        alibi_slopes = alibi_slopes.reshape(-1, query.shape[1])
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Flash.apply(query, key, value, attn_mask, alibi_slopes, is_causal, scale)
    return (output, lse) if return_lse else output
