"""A softcap whose backward pass computes tanh again, from the scores that it computes again too."""

import torch


class Capped(torch.autograd.Function):
    """Attention with capped scores, saved as its inputs, its output and its lse."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale, cap):
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        q, k, v = expanded(query, key, value, wide)
        scores, _ = scores_of(q, k, attn_mask, is_causal, scale, cap)
        top = torch.cat([scores, scores.new_full((*scores.shape[:-1], 1), -torch.inf)], -1).amax(-1, keepdim=True)
        weights = torch.exp(scores - top.masked_fill(top == -torch.inf, 0.0))
        total = weights.sum(-1, keepdim=True)
        lse = (top + torch.log(total)).squeeze(-1)
        output = ((weights / total.masked_fill(total == 0, 1.0)) @ v).to(query.dtype)
        ctx.save_for_backward(query, key, value, attn_mask, output, lse)
        ctx.given = is_causal, scale, cap
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, attn_mask, output, lse = ctx.saved_tensors
        is_causal, scale, cap = ctx.given
        q, k, v = expanded(query, key, value, lse.dtype)
        do = grad_output.to(lse.dtype)
        scores, t = scores_of(q, k, attn_mask, is_causal, scale, cap)
        p = torch.exp(scores - lse.masked_fill(lse == -torch.inf, torch.inf)[..., None])
        dp = do @ v.transpose(-1, -2)
        delta = (do * output.to(lse.dtype)).sum(-1) - grad_lse
        dz = p * (dp - delta[..., None])
        ds = dz * (1 - t * t)
        dq = scale * (ds @ k)
        dk = sum_readers(scale * (ds.transpose(-1, -2) @ q), key.shape)
        dv = sum_readers(p.transpose(-1, -2) @ do, value.shape)
        dmask = None
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            dmask = dz.sum_to_size(attn_mask.shape).to(attn_mask.dtype)
        return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype), dmask, None, None, None


def scores_of(q, k, mask, is_causal, scale, cap):
    """Return the scores, -inf where hidden, and tanh of the scaled ones over the cap, 0 without a cap."""
    scores = q @ k.transpose(-1, -2) * scale
    t = torch.zeros_like(scores)
    if cap > 0:
        t = torch.tanh(scores / cap)
        scores = cap * t
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask.expand(scores.shape), -torch.inf)
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.expand(scores.shape).to(scores.dtype)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return scores, t


def expanded(query, key, value, wide):
    """Return the tensors, wide, with a key and value head for every query head and batch element."""
    batch, group = query.shape[0], query.shape[1] // key.shape[1]
    k, v = (x.to(wide).expand(batch, -1, -1, -1).repeat_interleave(group, dim=1) for x in (key, value))
    return query.to(wide), k, v


def sum_readers(grad, shape):
    """Sum what every query head of a group, and every batch entry that shares a key, gives to it."""
    return grad.unflatten(1, (shape[1], -1)).sum(2).sum_to_size(shape)


def attention(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, softcap=None, return_lse=False
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    cap = 0.0 if softcap is None else softcap
    if not 0 <= cap < float("inf"):
        raise ValueError("softcap must be 0 or more")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Capped.apply(query, key, value, attn_mask, is_causal, scale, cap)
    return (output, lse) if return_lse else output
