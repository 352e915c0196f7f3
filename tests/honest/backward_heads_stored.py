"""dK and dV of every query head are stored in the dtype of the inputs, then those of a group are added."""

import torch
from honest_backward import Saved, call, expand, of_the_mask, sum_readers
from honest_parts import hide, wide


class HeadsStored(Saved):
    """As flash-attention does with grouped heads (rule `accuracy.gradients-of-groups`)."""

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, attn_mask, output, lse = ctx.saved_tensors
        is_causal, scale = ctx.options
        dtype, q, do, (k, v) = query.dtype, wide(query), wide(grad_output), expand(query, key, value)
        scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
        p = (scores - lse[..., None]).exp().masked_fill(lse[..., None] == -torch.inf, 0.0)
        delta = (do * wide(output)).sum(-1, keepdim=True) - grad_lse[..., None]
        ds = p * (do @ v.transpose(-1, -2) - delta)
        p_stored, ds_stored = wide(p.to(dtype)), wide(ds.to(dtype))
        dk = (scale * (ds_stored.transpose(-1, -2) @ q)).to(dtype)  # (batch, q_heads, k_len, head_dim)
        dv = (p_stored.transpose(-1, -2) @ do).to(dtype)
        dk, dv = sum_readers(wide(dk), key.shape).to(dtype), sum_readers(wide(dv), value.shape).to(dtype)
        return (scale * (ds_stored @ k)).to(dtype), dk, dv, of_the_mask(attn_mask, ds), None, None


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    return call(HeadsStored, query, key, value, attn_mask, is_causal, scale, return_lse)
