"""Latent attention in its expanded form: keys and values of all heads in the storage dtype, then attention."""

import torch


def target(query, latent, key_rope, w_uk, w_uv, *, is_causal=False, causal_alignment="upper_left", scale=None,
           key_lengths=None):  # fmt: skip
    dtype, (batch, heads, q_len, head_dim), k_len = query.dtype, query.shape, latent.shape[1]
    if w_uk.shape[0] != heads or w_uv.shape[0] != heads:
        raise ValueError("w_uk and w_uv need the heads of the query")
    if w_uk.shape[2] != latent.shape[2] or w_uk.shape[1] + key_rope.shape[2] != head_dim:
        raise ValueError("w_uk needs the rank of the cache and what rope leaves of the head dimension")
    lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths
    if (lengths < 0).any() or (lengths > k_len).any():
        raise ValueError("a length is beyond the cache")
    exists = torch.arange(k_len) < lengths[:, None]  # (batch, k_len)
    latent, key_rope = (torch.where(exists[..., None], x, 0.0) for x in (latent, key_rope))
    wide = torch.promote_types(dtype, torch.float32)
    nope_key = torch.einsum("bkr,hnr->bhkn", latent.to(wide), w_uk.to(wide)).to(dtype)
    value = torch.einsum("bkr,hvr->bhkv", latent.to(wide), w_uv.to(wide)).to(dtype)
    rope_key = key_rope[:, None].expand(-1, heads, -1, -1)
    key = torch.cat([nope_key, rope_key], -1).to(wide)  # (batch, heads, k_len, nope_dim + rope_dim)
    scale = head_dim**-0.5 if scale is None else scale
    scores = query.to(wide) @ key.transpose(-1, -2) * scale  # (batch, heads, q_len, k_len)
    visible = exists[:, None, None].expand(scores.shape)
    if is_causal:
        offset = (lengths - q_len)[:, None, None, None] if causal_alignment == "lower_right" else 0
        visible = visible & (torch.arange(k_len) <= torch.arange(q_len)[:, None] + offset)
    scores = scores.masked_fill(~visible, -torch.inf)
    empty = ~visible.any(-1, keepdim=True)
    weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
    output = weights @ value.to(wide)
    return output.to(dtype), torch.logsumexp(scores, -1)
