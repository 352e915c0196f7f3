"""Latent attention in its absorbed form, as decoding has it: one key and value for all heads, a block of keys after the
other, with W^UK taken into the query and W^UV out of the sum."""

import torch

BLOCK = 4


def target(query, latent, key_rope, w_uk, w_uv, *, is_causal=False, causal_alignment="upper_left", scale=None,
           key_lengths=None):  # fmt: skip
    dtype, (batch, heads, q_len, head_dim), k_len = query.dtype, query.shape, latent.shape[1]
    nope_dim, rank = w_uk.shape[1:]
    if (len(w_uk), len(w_uv), rank, nope_dim) != (heads, heads, latent.shape[2], head_dim - key_rope.shape[2]):
        raise ValueError("the matrices do not fit the query and the cache")
    wide = torch.promote_types(dtype, torch.float32)
    scale = head_dim**-0.5 if scale is None else scale
    lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths.long()
    if int(lengths.max()) > k_len or int(lengths.min()) < 0:
        raise ValueError("a length is beyond the cache")
    exists = torch.arange(k_len)[:, None] < lengths[:, None, None]  # (batch, k_len, 1)
    latent, key_rope = (torch.where(exists, x, 0.0) for x in (latent, key_rope))
    nope, rope = query[..., :nope_dim].to(wide), query[..., nope_dim:].to(wide)
    absorbed = torch.einsum("bhqn,hnr->bhqr", nope, w_uk.to(wide)).to(dtype).to(wide)
    top = torch.full((batch, heads, q_len, 1), -torch.inf, dtype=wide)
    total, mixed = torch.zeros_like(top), torch.zeros(batch, heads, q_len, rank, dtype=wide)
    diagonal = torch.arange(q_len)[:, None]
    if causal_alignment == "lower_right":
        diagonal = diagonal + (lengths - q_len)[:, None, None, None]
    for start in range(0, k_len, BLOCK):
        place = torch.arange(start, min(start + BLOCK, k_len))
        shared = latent[:, None, place].to(wide)  # (batch, 1, block, kv_rank)
        scores = absorbed @ shared.transpose(-1, -2)
        scores = scores + rope @ key_rope[:, None, place].to(wide).transpose(-1, -2)
        visible = place < lengths[:, None, None, None]
        if is_causal:
            visible = visible & (place <= diagonal)
        scores = (scores * scale).masked_fill(~visible, -torch.inf)
        above = torch.maximum(top, scores.amax(-1, keepdim=True))
        finite = above.masked_fill(above == -torch.inf, 0.0)
        parts = torch.exp(scores - finite)
        kept = torch.exp(top - finite)
        total = total * kept + parts.sum(-1, keepdim=True)
        mixed = mixed * kept + parts @ shared
        top = above
    attended = (mixed / total.masked_fill(total == 0, 1.0)).to(dtype)  # (batch, heads, q_len, kv_rank)
    output = torch.einsum("bhqr,hvr->bhqv", attended.to(wide), w_uv.to(wide))
    return output.to(dtype), (top + torch.log(total)).squeeze(-1)
