"""Causal with the diagonal in the other corner, as flash-attention has it."""

import torch
from honest import finish, hide, scores_of


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scores = hide(scores_of(query, key, scale), attn_mask, False)
    if is_causal:
        q_len, k_len = scores.shape[-2:]
        triangle = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
        scores = scores.masked_fill(~triangle, -torch.inf)
    return finish(scores, value, query, return_lse)
