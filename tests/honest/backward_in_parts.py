"""dK and dV over the rows in parts, the last rows first, each part in a buffer of its own; then the buffers added."""

import torch
from honest_backward import Saved, call, expand, of_the_mask, sum_readers
from honest_parts import hide, wide

PARTS = 5  # more than some calls have rows: parts may be empty


class Parts(Saved):
    """The rows that one of several workers takes are summed apart from those of the others."""

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, attn_mask, output, lse = ctx.saved_tensors
        is_causal, scale = ctx.options
        q, do, (k, v) = wide(query), wide(grad_output), expand(query, key, value)
        p = (hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal) - finite(lse)).exp()
        delta = (do * wide(output)).sum(-1, keepdim=True)
        ds = p * (do @ v.transpose(-1, -2) - delta + grad_lse[..., None])
        parts = range(PARTS - 1, -1, -1)
        dk = sum(ds[:, :, i::PARTS].transpose(-1, -2) @ (scale * q[:, :, i::PARTS]) for i in parts)
        dv = sum(p[:, :, i::PARTS].transpose(-1, -2) @ do[:, :, i::PARTS] for i in parts)
        dk, dv = sum_readers(dk, key.shape), sum_readers(dv, value.shape)
        dtype = query.dtype
        dq = (ds @ (scale * k)).to(dtype)
        return dq, dk.to(dtype), dv.to(dtype), of_the_mask(attn_mask, ds), None, None


def finite(lse):
    """Return the lse as a column, 0 where the row sees no key."""
    return lse.masked_fill(lse == -torch.inf, 0.0)[..., None]


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    return call(Parts, query, key, value, attn_mask, is_causal, scale, return_lse)
