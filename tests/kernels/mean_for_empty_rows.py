"""A row that sees no key returns the mean of the values."""

import torch
from honest import finish, hide, scores_of


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scores = hide(scores_of(query, key, scale), attn_mask, is_causal)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return finish(scores.masked_fill(empty, 0), value, query, return_lse)
