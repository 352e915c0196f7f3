"""A loop over the rows; each takes only the keys that it sees."""

import torch
from honest_parts import hide, inputs, result


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    q, k, v, scale = inputs(query, key, value, scale)
    k, v = (x.expand(q.shape[0], -1, -1, -1) for x in (k, v))
    scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
    output = q.new_zeros((*q.shape[:3], v.shape[-1]))
    lse = q.new_full(q.shape[:3], -torch.inf)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        row = scores[b, h, i]
        seen = (row != -torch.inf).nonzero().flatten()
        if len(seen):
            lse[b, h, i] = torch.logsumexp(row[seen], 0)
            output[b, h, i] = torch.softmax(row[seen], 0) @ v[b, h, seen]
    return result(output, lse, query, return_lse)
