"""A torch.autograd.Function: the forward runs without a graph, the backward recomputes the weights from the lse."""

import torch
from honest_parts import check_shapes, hide, result, softmax, wide


class Flash(torch.autograd.Function):
    """Attention of wide tensors with equal heads; the lse has no gradient."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale):
        weights, lse = softmax(hide(query @ key.transpose(-1, -2) * scale, attn_mask, is_causal))
        ctx.save_for_backward(query, key, value, attn_mask, lse)
        ctx.options = is_causal, scale
        ctx.mark_non_differentiable(lse)
        return weights @ value, lse

    @staticmethod
    def backward(ctx, grad, _):
        query, key, value, attn_mask, lse = ctx.saved_tensors
        is_causal, scale = ctx.options
        scores = hide(query @ key.transpose(-1, -2) * scale, attn_mask, is_causal)
        weights = (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
        grad_weights = grad @ value.transpose(-1, -2)
        grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
        grad_value = weights.transpose(-1, -2) @ grad
        floats = attn_mask is not None and attn_mask.dtype != torch.bool
        grad_mask = grad_scores.sum_to_size(attn_mask.shape).to(attn_mask.dtype) if floats else None
        grad_scores = grad_scores * scale
        return grad_scores @ key, grad_scores.transpose(-1, -2) @ query, grad_value, grad_mask, None, None


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    check_shapes(query, key, value)
    if attn_mask is not None and attn_mask.requires_grad:
        raise ValueError("attn_mask has no gradient here")
    group = query.shape[1] // key.shape[1]
    shape = (query.shape[0], -1, -1, -1)
    k, v = (wide(x).expand(shape).repeat_interleave(group, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Flash.apply(wide(query), k, v, attn_mask, is_causal, scale)
    return result(output, lse, query, return_lse)
