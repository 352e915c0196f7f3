"""The sum over the keys runs in another order each time, as with atomic additions."""

import torch
from honest import finish, hide, scores_of


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    order = torch.randperm(key.shape[2])
    scores = hide(scores_of(query, key, scale), attn_mask, is_causal)
    return finish(scores[..., order], value[:, :, order], query, return_lse)
