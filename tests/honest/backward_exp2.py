"""The weights again as powers of 2, keys from the last to the first, P and dS stored in the dtype of the inputs."""

import math

import torch
from honest_backward import Saved, call, expand, of_the_mask, sum_readers
from honest_parts import hide, wide

LOG2_E = math.log2(math.e)
TILE = 48


class PowersOfTwo(Saved):
    """Differences from the lse are turned to base 2; tiles of keys, all rows at once."""

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, attn_mask, output, lse = ctx.saved_tensors
        is_causal, scale = ctx.options
        q, do, (k, v) = wide(query), wide(grad_output), expand(query, key, value)
        scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
        lse = lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]  # a power of -inf in a row that sees no key
        delta = (do * wide(output)).sum(-1, keepdim=True) - grad_lse[..., None]
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        dbias = torch.zeros_like(scores)
        for stop in range(k.shape[2], 0, -TILE):
            tile = slice(max(stop - TILE, 0), stop)
            p = ((scores[..., tile] - lse) * LOG2_E).exp2()
            ds = wide((p * (do @ v[:, :, tile].transpose(-1, -2) - delta)).to(query.dtype))
            dv[:, :, tile] = wide(p.to(query.dtype)).transpose(-1, -2) @ do
            dk[:, :, tile] = ds.transpose(-1, -2) @ q * scale
            dq += ds @ k[:, :, tile] * scale
            dbias[..., tile] = ds
        dk, dv = sum_readers(dk, key.shape), sum_readers(dv, value.shape)
        dtype = query.dtype
        return dq.to(dtype), dk.to(dtype), dv.to(dtype), of_the_mask(attn_mask, dbias), None, None


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    return call(PowersOfTwo, query, key, value, attn_mask, is_causal, scale, return_lse)
