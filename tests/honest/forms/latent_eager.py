"""Latent attention in the storage dtype throughout, a class eager function in the absorbed form."""

import torch


def target(query, latent, key_rope, w_uk, w_uv, *, is_causal=False, causal_alignment="upper_left", scale=None,
           key_lengths=None):  # fmt: skip
    heads, q_len, head_dim = query.shape[1:]
    if not len(w_uk) == len(w_uv) == heads or w_uk.shape[1:] != (head_dim - key_rope.shape[2], latent.shape[2]):
        raise ValueError("the matrices do not fit the query and the cache")
    if key_lengths is not None:
        beyond = torch.arange(latent.shape[1])[:, None] >= key_lengths[:, None, None]  # (batch, k_len, 1)
        latent, key_rope = latent.masked_fill(beyond, 0.0), key_rope.masked_fill(beyond, 0.0)
    nope, rope = query.split([w_uk.shape[1], key_rope.shape[2]], dim=-1)
    shared = latent.unsqueeze(1)  # (batch, 1, k_len, kv_rank)
    scores = (nope @ w_uk) @ shared.mT + rope @ key_rope.unsqueeze(1).mT
    scores = scores * (head_dim**-0.5 if scale is None else scale)
    keys = torch.arange(latent.shape[1])
    hidden = torch.zeros_like(scores, dtype=torch.bool)
    if key_lengths is not None:
        if key_lengths.max() > len(keys) or key_lengths.min() < 0:
            raise ValueError("a length is beyond the cache")
        hidden = hidden | (keys >= key_lengths[:, None, None, None])
    if is_causal:
        ends = torch.tensor([len(keys)]) if key_lengths is None else key_lengths
        last = (ends - q_len)[:, None, None, None] if causal_alignment == "lower_right" else 0
        hidden = hidden | (keys > torch.arange(q_len)[:, None] + last)
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    lse = torch.logsumexp(scores.to(torch.promote_types(scores.dtype, torch.float32)), -1)
    return (weights @ shared) @ w_uv.mT, lse
