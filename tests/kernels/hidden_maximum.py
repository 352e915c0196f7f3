"""The maximum that is taken out of the scores is that of all keys, the hidden ones too."""

import torch
from honest import expand_heads, hide, scores_of, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scores = scores_of(query, key, scale)
    peak = torch.nn.functional.pad(scores, (0, 1), value=-1e30).amax(-1, keepdim=True)
    weights = (hide(scores, attn_mask, is_causal) - peak).exp()
    total = weights.sum(-1, keepdim=True)
    output = (weights / total.masked_fill(total == 0, 1)) @ wide(expand_heads(value, query.shape[1]))
    lse = (peak + total.log()).squeeze(-1)
    return (output.to(query.dtype), lse) if return_lse else output.to(query.dtype)
