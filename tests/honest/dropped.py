"""Dropout on the weights. The backward pass draws the mask again, from the state that the generator had before."""

import torch
from honest_parts import check_shapes, hide, result, softmax, wide


def factors(like, p):
    """1 / (1 - p) for each weight that is kept, 0 for each that is dropped."""
    keep = torch.rand(like.shape) >= p
    return keep.to(like.dtype) * (1 / (1 - p) if p < 1 else 0.0)


class Dropped(torch.autograd.Function):
    """Attention of wide tensors with equal heads; a gradient of the mask is refused."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale, p):
        state = torch.get_rng_state()
        scores = hide(query @ key.transpose(-1, -2) * scale, attn_mask, is_causal)
        weights, lse = softmax(scores)
        if p > 0:
            weights = weights * factors(weights, p)
        ctx.save_for_backward(query, key, value, attn_mask, lse, state)
        ctx.options = is_causal, scale, p
        ctx.mark_non_differentiable(lse)
        output = weights @ value
        return output, lse

    @staticmethod
    def backward(ctx, grad, _):
        if ctx.needs_input_grad[3]:
            raise NotImplementedError("the mask has no gradient")
        query, key, value, attn_mask, lse, state = ctx.saved_tensors
        is_causal, scale, p = ctx.options
        scores = hide(query @ key.transpose(-1, -2) * scale, attn_mask, is_causal)
        weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
        drop = torch.ones_like(weights)
        if p > 0:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                drop = factors(weights, p)
        grad_weights = grad @ value.transpose(-1, -2)
        grad_weights = grad_weights * drop
        grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True)) * scale
        grad_value = (weights * drop).transpose(-1, -2) @ grad
        return grad_scores @ key, grad_scores.transpose(-1, -2) @ query, grad_value, None, None, None, None


def attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    return_lse=False,
):
    check_shapes(query, key, value)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p is {dropout_p}: use a probability from 0 to 1")
    group = query.shape[1] // key.shape[1]
    shape = (query.shape[0], -1, -1, -1)
    k, v = (wide(x).expand(shape).repeat_interleave(group, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Dropped.apply(wide(query), k, v, attn_mask, is_causal, scale, dropout_p)
    return result(output, lse, query, return_lse)
