"""Flash attention whose backward pass gives a gradient of the slopes too: minus the sum of dS times the distance."""

import torch
from alibi_flash import TILE, Flash, expanded, scores_of


class Learned(Flash):
    """The passes of `alibi_flash`, and one more sum over the tiles of the backward pass."""

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        found = Flash.backward(ctx, grad_output, grad_lse)
        query, key, value, attn_mask, slopes, output, lse = ctx.saved_tensors
        if slopes is None:
            return found
        is_causal, scale = ctx.options
        q, k, v = expanded(query, key, value, lse.dtype)
        do = grad_output.to(lse.dtype)
        delta = (do * output.to(lse.dtype)).sum(-1) - grad_lse
        guarded = lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]
        rows = torch.arange(q.shape[2])[:, None]
        dslopes = torch.zeros(q.shape[:2], dtype=lse.dtype)
        for start in range(0, k.shape[2], TILE):
            keys = slice(start, start + TILE)
            p = torch.exp(scores_of(q, k, attn_mask, slopes, is_causal, scale, start) - guarded)
            ds = p * (do @ v[:, :, keys].transpose(-1, -2) - delta[..., None])
            distance = (rows - torch.arange(k.shape[2])[keys]).abs()
            dslopes -= (ds * distance).sum((2, 3))
        dslopes = dslopes.sum_to_size(slopes.shape)
        return (*found[:4], dslopes.to(slopes.dtype), *found[5:])


def attention(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    alibi_slopes=None,
    return_lse=False,
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    if alibi_slopes is not None:
        if tuple(alibi_slopes.shape) not in (tuple(query.shape[1:2]), tuple(query.shape[:2])):
            raise ValueError("alibi_slopes must hold one number a query head, or a batch element and query head")
        alibi_slopes = alibi_slopes.reshape(-1, query.shape[1])
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Learned.apply(query, key, value, attn_mask, alibi_slopes, is_causal, scale)
    return (output, lse) if return_lse else output
