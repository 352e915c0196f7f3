"""Attention over 8-bit keys and values as a torch.autograd.Function: what it keeps is output and lse, and the backward
pass makes products and weights again and the gradient of the query by hand."""

import torch


class Quantised(torch.autograd.Function):
    """The output and the lse. visible: (batch, 1, q_len, k_len) bool."""

    @staticmethod
    def forward(ctx, query, key, value, key_scale, value_scale, visible, scale):
        q = query.to(torch.promote_types(query.dtype, torch.float32))
        keys, values = of_heads(key, key_scale, q, visible), of_heads(value, value_scale, q, visible)
        scores = (q @ keys.mT * scale).masked_fill(~visible, -torch.inf)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        output = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0)) @ values
        ctx.save_for_backward(query, key, value, key_scale, value_scale, visible, output, lse)
        ctx.scale = scale
        return output.to(query.dtype), lse.squeeze(-1)

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, key_scale, value_scale, visible, output, lse = ctx.saved_tensors
        q, flow = query.to(lse.dtype), grad_output.to(lse.dtype)
        keys, values = of_heads(key, key_scale, q, visible), of_heads(value, value_scale, q, visible)
        scores = (q @ keys.mT * ctx.scale).masked_fill(~visible, -torch.inf)
        weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0))
        delta = (flow * output).sum(-1, keepdim=True)
        grad_scores = weights * (flow @ values.mT - delta + grad_lse[..., None])
        grad_query = grad_scores @ keys * ctx.scale
        return grad_query.to(query.dtype), None, None, None, None, None, None


def of_heads(stored, scale, query, visible):
    """Scale times stored number, 0 for tokens that no query sees, for each head of the queries."""
    numbers = torch.where(visible.any(-2)[..., None], stored.to(query.dtype) * scale.to(query.dtype), 0.0)
    return numbers.repeat_interleave(query.shape[1] // stored.shape[1], 1)


def target(
    query, key, value, key_scale, value_scale, *, is_causal=False, scale=None, enable_gqa=False, key_lengths=None
):
    for stored, of in ((key, key_scale), (value, value_scale)):
        if stored.dtype not in (torch.int8, torch.float8_e4m3fn) or not of.is_floating_point():
            raise TypeError(f"{stored.dtype} with scales of {of.dtype}")
        if of.ndim and (of.ndim != 4 or torch.broadcast_shapes(of.shape, stored.shape) != stored.shape):
            raise ValueError(f"scale {tuple(of.shape)} for {tuple(stored.shape)}")
    (batch, _, q_len, head_dim), places = query.shape, torch.arange(key.shape[2])
    visible = torch.ones(batch, 1, q_len, len(places), dtype=torch.bool)
    if key_lengths is not None:
        visible = visible & (places < key_lengths[:, None, None, None])
    if is_causal:
        visible = visible & (places <= torch.arange(q_len)[:, None])
    scale = head_dim**-0.5 if scale is None else scale
    return Quantised.apply(query, key, value, key_scale, value_scale, visible, scale)
