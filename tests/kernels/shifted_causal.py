"""Causal, but each row also sees the next key."""

import torch
from honest import finish, hide, scores_of


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scores = hide(scores_of(query, key, scale), attn_mask, False)
    if is_causal:
        triangle = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1)
        scores = scores.masked_fill(~triangle, -torch.inf)
    return finish(scores, value, query, return_lse)
