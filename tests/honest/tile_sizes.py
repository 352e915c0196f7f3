"""One kernel in tiles of 1, 16, 64 and 128 keys: the result must not depend on the tile."""

import torch
from honest_parts import hide, inputs, result


def in_tiles_of(tile):
    """Return the kernel with this many keys a tile."""

    @torch.no_grad()
    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
        q, k, v, scale = inputs(query, key, value, scale)
        scores = hide(q @ k.transpose(-1, -2) * scale, attn_mask, is_causal)
        top = q.new_full((*q.shape[:3], 1), -torch.inf)
        total = torch.zeros_like(top)
        acc = q.new_zeros((*q.shape[:3], v.shape[-1]))
        for some, values in zip(scores.split(tile, -1), v.split(tile, -2), strict=True):
            if some.shape[-1] == 0:  # no keys at all
                break
            new_top = torch.maximum(top, some.amax(-1, keepdim=True))
            safe = new_top.masked_fill(new_top == -torch.inf, 0.0)
            weights, rescale = (some - safe).exp(), (top - safe).exp()
            total = total * rescale + weights.sum(-1, keepdim=True)
            acc = acc * rescale + weights.to(query.dtype).to(q.dtype) @ values
            top = new_top
        lse = (top + total.log()).masked_fill(total == 0, -torch.inf).squeeze(-1)
        return result(acc / total.masked_fill(total == 0, 1.0), lse, query, return_lse)

    return attention


attention_1, attention_16, attention_64, attention_128 = map(in_tiles_of, (1, 16, 64, 128))
