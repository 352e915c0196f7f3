"""What several honest backward passes start from: a forward that saves its lse, and sums over what was shared."""

import torch
from honest_parts import check_shapes, hide, softmax, wide


class Saved(torch.autograd.Function):
    """The forward of an attention that saves its inputs, its stored output and its lse."""

    @staticmethod
    def forward(ctx, query, key, value, attn_mask, is_causal, scale):
        k, v = expand(query, key, value)
        weights, lse = softmax(hide(wide(query) @ k.transpose(-1, -2) * scale, attn_mask, is_causal))
        output = (weights @ v).to(query.dtype)
        ctx.save_for_backward(query, key, value, attn_mask, output, lse)
        ctx.options = is_causal, scale
        return output, lse


def expand(query, key, value):
    """Return wide keys and values, one head for every query head and batch entry."""
    group, batch = query.shape[1] // key.shape[1], query.shape[0]
    return (wide(x).expand(batch, -1, -1, -1).repeat_interleave(group, dim=1) for x in (key, value))


def sum_readers(grad, shape):
    """Sum what every query head of a group, and every batch entry that shares a key, gives to it."""
    return grad.unflatten(1, (shape[1], -1)).sum(2).sum_to_size(shape)


def of_the_mask(attn_mask, grad_scores):
    """Return the gradient of a mask: that of the scores, summed over what was broadcast; None for a bool mask."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return None
    return grad_scores.sum_to_size(attn_mask.shape).to(attn_mask.dtype)


def call(function, query, key, value, attn_mask, is_causal, scale, return_lse):
    """Run an autograd function with the arguments of `attention`."""
    check_shapes(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = function.apply(query, key, value, attn_mask, is_causal, scale)
    return (output, lse) if return_lse else output
