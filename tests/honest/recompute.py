"""Flash attention, forward and backward: the weights are computed again from the lse, tile by tile, sums in float32."""

import torch
from torch.nn.functional import pad

TILE = 32


class Flash(torch.autograd.Function):
    """Attention of padded tiles; P and dS are rounded once to the storage dtype before they meet 16-bit operands."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale, key_lengths):
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        ends = ends_of(key, key_lengths)
        q, k, v, mask = padded(query, key, value, attn_mask, ends, wide)
        output = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, dtype=wide)
        lse = torch.full(q.shape[:3], torch.nan, dtype=wide)
        for row in range(0, q.shape[2], TILE):
            rows = torch.arange(row, row + TILE)
            top = torch.full((*q.shape[:2], TILE, 1), -torch.inf, dtype=wide)
            total = torch.zeros_like(top)
            acc = torch.zeros(*q.shape[:2], TILE, v.shape[-1], dtype=wide)
            for start in range(0, k.shape[2], TILE):
                keys = torch.arange(start, start + TILE)
                scores = scores_of(q, k, mask, is_causal, scale, rows, keys)
                scores = scores.masked_fill(keys >= ends, -torch.inf)
                new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
                safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
                weights = torch.exp(scores - safe)
                rescale = torch.exp(top - safe)
                total = total * rescale + weights.sum(-1, keepdim=True)
                acc = acc * rescale + weights.to(query.dtype).to(wide) @ v[:, :, keys]
                top = new_top
            empty = total == 0
            output[:, :, rows] = acc / total.masked_fill(empty, 1.0)
            lse[:, :, rows] = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)
        output = output[:, :, : query.shape[2]].to(query.dtype)
        lse = lse[:, :, : query.shape[2]].clone()
        ctx.save_for_backward(query, key, value, attn_mask, ends, output, lse)
        ctx.options = is_causal, scale
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, attn_mask, ends, output, lse = ctx.saved_tensors
        is_causal, scale = ctx.options
        wide = lse.dtype
        q_len, k_len = query.shape[2], key.shape[2]
        q, k, v, mask = padded(query, key, value, attn_mask, ends, wide)
        do = pad(grad_output.to(wide), (0, 0, 0, -q_len % TILE))
        delta = (grad_output.to(wide) * output.to(wide)).sum(-1)
        delta = pad(delta - grad_lse, (0, -q_len % TILE))[..., None]
        guarded = lse.masked_fill(lse == -torch.inf, torch.inf)
        guarded = pad(guarded, (0, -q_len % TILE), value=torch.inf)[..., None]
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        dbias = torch.zeros(*q.shape[:3], k.shape[2], dtype=wide)
        for start in range(0, k.shape[2], TILE):
            keys = torch.arange(start, start + TILE)
            for row in range(0, q.shape[2], TILE):
                rows = torch.arange(row, row + TILE)
                again = scores_of(q, k, mask, is_causal, scale, rows, keys)
                again = again.masked_fill(keys >= ends, -torch.inf)
                p = torch.exp(again - guarded[:, :, rows])
                dp = do[:, :, rows] @ v[:, :, keys].transpose(-1, -2)
                ds = (p * (dp - delta[:, :, rows])).to(query.dtype).to(wide)
                p = p.to(query.dtype).to(wide)
                dv[:, :, keys] += p.transpose(-1, -2) @ do[:, :, rows]
                dk[:, :, keys] += ds.transpose(-1, -2) @ q[:, :, rows]
                dq[:, :, rows] += ds @ k[:, :, keys]
                dbias[:, :, row : row + TILE, start : start + TILE] = ds
        dq = (scale * dq[:, :, :q_len]).to(query.dtype)
        dk = sum_readers(scale * dk[:, :, :k_len], key.shape).to(query.dtype)
        dv = sum_readers(dv[:, :, :k_len], value.shape).to(query.dtype)
        dmask = None
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            dmask = dbias[:, :, :q_len, :k_len].sum_to_size(attn_mask.shape).to(attn_mask.dtype)
        return dq, dk, dv, dmask, None, None, None


def ends_of(key, key_lengths):
    """Return how many keys of each batch element exist, (batch or 1, 1, 1, 1)."""
    lengths = torch.tensor([key.shape[2]]) if key_lengths is None else key_lengths
    return lengths[:, None, None, None]


def padded(query, key, value, attn_mask, ends, wide):
    """Return query, key, value and mask, wide, a key head for every query head, lengths filled up to whole tiles."""
    batch, heads, q_len, _ = query.shape
    k_len = key.shape[2]
    group = heads // key.shape[1]
    rows, keys = -q_len % TILE, -k_len % TILE
    q = pad(query.to(wide), (0, 0, 0, rows))
    k, v = (x.to(wide).expand(batch, -1, -1, -1).repeat_interleave(group, dim=1) for x in (key, value))
    absent = torch.arange(k_len)[:, None] >= ends
    k, v = (pad(x.masked_fill(absent, 0.0), (0, 0, 0, keys)) for x in (k, v))
    if attn_mask is not None:
        attn_mask = pad(attn_mask.expand(batch, heads, q_len, k_len), (0, keys, 0, rows))
    return q, k, v, attn_mask


def scores_of(q, k, mask, is_causal, scale, rows, keys):
    """Return the scores of a tile, -inf where a mask hides them."""
    scores = q[:, :, rows] @ k[:, :, keys].transpose(-1, -2) * scale
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask[:, :, rows][..., keys], -torch.inf)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask[:, :, rows][..., keys].to(scores.dtype)
    if is_causal:
        scores = scores.masked_fill(keys > rows[:, None], -torch.inf)
    return scores


def sum_readers(grad, shape):
    """Sum what every query head of a group, and every batch entry that shares a key, gives to it."""
    grad = grad.unflatten(1, (shape[1], -1)).sum(2)
    return grad.sum_to_size(shape)


def attention(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    key_lengths=None,
    return_lse=False,
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    if key_lengths is not None:
        if key_lengths.shape != query.shape[:1] or key_lengths.is_floating_point():
            raise ValueError("key_lengths must hold one integer a batch element")
        if ((key_lengths < 0) | (key_lengths > key.shape[2])).any():
            raise ValueError("key_lengths must lie between 0 and the number of keys")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Flash.apply(query, key, value, attn_mask, is_causal, scale, key_lengths)
    return (output, lse) if return_lse else output
