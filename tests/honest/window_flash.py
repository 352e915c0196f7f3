"""Flash attention that skips the tiles which no row of a block sees through its window, forward and backward."""

import torch

Q_TILE = 16
K_TILE = 32


class Flash(torch.autograd.Function):
    """Tiles with an online softmax; the backward pass computes the weights again from the lse."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale, window):
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        q, k, v = expanded(query, key, value, wide)
        q_len, k_len = q.shape[2], k.shape[2]
        output = query.new_full((*q.shape[:3], v.shape[3]), torch.nan)
        lse = torch.full(q.shape[:3], torch.nan, dtype=wide)
        for row in range(0, q_len, Q_TILE):
            rows = torch.arange(row, min(row + Q_TILE, q_len))
            top = torch.full((*q.shape[:2], len(rows), 1), -torch.inf, dtype=wide)
            total = torch.zeros_like(top)
            mixed = torch.zeros(*top.shape[:3], v.shape[3], dtype=wide)
            first, end = tiles_of_rows(rows, k_len, window, is_causal)
            for start in range(first, end, K_TILE):
                keys = torch.arange(start, min(start + K_TILE, k_len))
                scores = scores_of(q, k, attn_mask, is_causal, scale, window, rows, keys)
                larger = torch.maximum(top, scores.amax(-1, keepdim=True))
                safe = larger.masked_fill(larger == -torch.inf, 0.0)
                weights, rescale = torch.exp(scores - safe), torch.exp(top - safe)
                total = total * rescale + weights.sum(-1, keepdim=True)
                mixed = mixed * rescale + weights.to(query.dtype).to(wide) @ v[:, :, keys]
                top = larger
            empty = total == 0
            output[:, :, rows] = (mixed / total.masked_fill(empty, 1.0)).to(query.dtype)
            lse[:, :, rows] = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)
        ctx.save_for_backward(query, key, value, attn_mask, output, lse)
        ctx.given = is_causal, scale, window
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, attn_mask, output, lse = ctx.saved_tensors
        is_causal, scale, window = ctx.given
        wide = lse.dtype
        q, k, v = expanded(query, key, value, wide)
        q_len, k_len = q.shape[2], k.shape[2]
        do = grad_output.to(wide)
        delta = (do * output.to(wide)).sum(-1) - grad_lse
        guarded = lse.masked_fill(lse == -torch.inf, torch.inf)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        dbias = torch.zeros(*q.shape[:3], k_len, dtype=wide)
        for start in range(0, k_len, K_TILE):
            keys = torch.arange(start, min(start + K_TILE, k_len))
            first, end = tiles_of_keys(keys, q_len, window, is_causal)
            for row in range(first, end, Q_TILE):
                rows = torch.arange(row, min(row + Q_TILE, q_len))
                again = scores_of(q, k, attn_mask, is_causal, scale, window, rows, keys)
                p = torch.exp(again - guarded[:, :, rows, None])
                dp = do[:, :, rows] @ v[:, :, keys].transpose(-1, -2)
                ds = p * (dp - delta[:, :, rows, None])
                dv[:, :, keys] += p.transpose(-1, -2) @ do[:, :, rows]
                dk[:, :, keys] += scale * (ds.transpose(-1, -2) @ q[:, :, rows])
                dq[:, :, rows] += scale * (ds @ k[:, :, keys])
                dbias[:, :, row : row + Q_TILE, start : start + K_TILE] = ds
        dk, dv = (sum_readers(x, given.shape) for x, given in ((dk, key), (dv, value)))
        dmask = None
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            dmask = dbias.sum_to_size(attn_mask.shape).to(attn_mask.dtype)
        return dq.to(query.dtype), dk.to(query.dtype), dv.to(query.dtype), dmask, None, None, None


def tiles_of_rows(rows, k_len, window, is_causal):
    """Return where the tiles of keys begin and end that some of the rows see."""
    left, right = window
    right = 0 if is_causal else right
    first = max(0, int(rows[0]) - left) // K_TILE * K_TILE if left >= 0 else 0
    end = min(k_len, int(rows[-1]) + right + 1) if right >= 0 else k_len
    return first, end


def tiles_of_keys(keys, q_len, window, is_causal):
    """Return where the tiles of rows begin and end that see some of the keys."""
    left, right = window
    right = 0 if is_causal else right
    first = max(0, int(keys[0]) - right) // Q_TILE * Q_TILE if right >= 0 else 0
    end = min(q_len, int(keys[-1]) + left + 1) if left >= 0 else q_len
    return first, end


def scores_of(q, k, mask, is_causal, scale, window, rows, keys):
    """Return the scores of a tile, -inf where a row does not see the key."""
    scores = q[:, :, rows] @ k[:, :, keys].transpose(-1, -2) * scale
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])[:, :, rows][..., keys]
        hidden = torch.full_like(scores, -torch.inf)
        scores = torch.where(mask, scores, hidden) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
    left, right = window
    distance = keys - rows[:, None]
    if is_causal:
        scores = scores.masked_fill(distance > 0, -torch.inf)
    if left >= 0:
        scores = scores.masked_fill(distance < -left, -torch.inf)
    if right >= 0:
        scores = scores.masked_fill(distance > right, -torch.inf)
    return scores


def expanded(query, key, value, wide):
    """Return the tensors, wide, with a key and value head for every query head and batch element."""
    batch, group = query.shape[0], query.shape[1] // key.shape[1]
    k, v = (x.to(wide).expand(batch, -1, -1, -1).repeat_interleave(group, dim=1) for x in (key, value))
    return query.to(wide), k, v


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
    window_size=None,
    return_lse=False,
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    window = (-1, -1) if window_size is None else window_size
    if min(window) < -1:
        raise ValueError("a side of the window is below -1")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Flash.apply(query, key, value, attn_mask, is_causal, scale, tuple(window))
    return (output, lse) if return_lse else output
