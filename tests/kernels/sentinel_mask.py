"""Hidden slots get a low finite score, so an empty row is no longer empty."""

import torch
from honest import finish, hide, scores_of


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scores = hide(scores_of(query, key, scale), attn_mask, is_causal)
    return finish(scores.masked_fill(scores == -torch.inf, -1e4), value, query, return_lse)
