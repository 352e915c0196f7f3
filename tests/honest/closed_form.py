"""A torch.autograd.Function: the forward saves its weights, the backward is the closed form."""

import torch


class ClosedForm(torch.autograd.Function):
    """Attention with gradients of query, key, value, an additive mask, and through the lse."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale, key_lengths):
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        batch, heads, q_len, _ = query.shape
        k_len = key.shape[2]
        group = heads // key.shape[1]
        q = query.to(wide)
        k, v = (x.to(wide).expand(batch, -1, -1, -1).repeat_interleave(group, dim=1) for x in (key, value))
        visible = torch.ones(q_len, k_len, dtype=torch.bool)
        if key_lengths is not None:
            absent = (torch.arange(k_len) >= key_lengths[:, None])[:, None, :, None]
            k, v = k.masked_fill(absent, 0.0), v.masked_fill(absent, 0.0)
            visible = visible & ~absent.transpose(-1, -2)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            visible = visible & attn_mask.expand(batch, heads, q_len, k_len)
        if is_causal:
            visible = visible & (torch.arange(k_len) <= torch.arange(q_len)[:, None])
        scores = q @ k.transpose(-1, -2) * scale
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            scores = scores + attn_mask.to(wide).expand(scores.shape)
        scores = scores.masked_fill(~visible, -torch.inf)
        top = torch.cat([scores, scores.new_full((*scores.shape[:-1], 1), -torch.inf)], -1).amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)
        weights = torch.exp(scores - top)
        total = weights.sum(-1, keepdim=True)
        lse = (top + torch.log(total)).squeeze(-1)
        weights = weights / total.masked_fill(total == 0, 1.0)
        ctx.save_for_backward(q, k, v, weights, attn_mask)
        ctx.given = scale, query.dtype, key.shape, value.shape
        return (weights @ v).to(query.dtype), lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        q, k, v, weights, attn_mask = ctx.saved_tensors
        scale, dtype, key_shape, value_shape = ctx.given
        do = grad_output.to(q.dtype)
        dp = do @ v.transpose(-1, -2)
        delta = (weights * dp).sum(-1, keepdim=True)
        ds = weights * (dp - delta + grad_lse[..., None])
        dq = scale * (ds @ k)
        dk = sum_readers(scale * (ds.transpose(-1, -2) @ q), key_shape)
        dv = sum_readers(weights.transpose(-1, -2) @ do, value_shape)
        dbias = None
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            dbias = ds.sum_to_size(attn_mask.shape).to(attn_mask.dtype)
        return dq.to(dtype), dk.to(dtype), dv.to(dtype), dbias, None, None, None


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
    output, lse = ClosedForm.apply(query, key, value, attn_mask, is_causal, scale, key_lengths)
    return (output, lse) if return_lse else output
