"""Tiles of 8-bit keys with an online softmax; the products take the stored numbers, the scales are folded around them.

A scale of the tensor, a head or a channel goes into the query and the output; one of a token into its score and its
weight.
"""

import torch

TILE = 4


def checked(stored, scale):
    if str(stored.dtype) not in ("torch.int8", "torch.float8_e4m3fn"):
        raise NotImplementedError(f"storage {stored.dtype}")
    if scale.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"scale {scale.dtype}")
    if scale.ndim == 0:
        scale = scale.reshape(1, 1, 1, 1)
    if scale.ndim != 4 or any(a not in (1, b) for a, b in zip(scale.shape, stored.shape, strict=True)):
        raise ValueError(f"scale {tuple(scale.shape)}")
    return scale


def target(
    query, key, value, key_scale, value_scale, *, is_causal=False, scale=None, enable_gqa=False, key_lengths=None
):
    wide = torch.promote_types(query.dtype, torch.float32)
    batch, heads, q_len, head_dim = query.shape
    group = heads // key.shape[1]
    key_scale, value_scale = checked(key, key_scale).to(wide), checked(value, value_scale).to(wide)
    scale = head_dim**-0.5 if scale is None else scale
    output = torch.zeros(batch, heads, q_len, value.shape[-1], dtype=wide)
    lse = torch.full((batch, heads, q_len), -torch.inf, dtype=wide)
    for b in range(batch):
        length = key.shape[2] if key_lengths is None else int(key_lengths[b])
        for h in range(heads):
            of_key, of_value = (part(x, b, h // group) for x in (key_scale, value_scale))
            k, v = key[b, h // group].to(wide), value[b, h // group].to(wide)
            by_token, by_value_token = len(of_key) > 1, len(of_value) > 1
            q = query[b, h].to(wide) * scale * (1.0 if by_token else of_key)
            top = torch.full((q_len, 1), -torch.inf, dtype=wide)
            total, mixed = torch.zeros(q_len, 1, dtype=wide), torch.zeros(q_len, v.shape[-1], dtype=wide)
            for start in range(0, length, TILE):
                tile = slice(start, min(start + TILE, length))
                scores = q @ k[tile].T
                if by_token:
                    scores = scores * of_key[tile].T
                if is_causal:
                    places = torch.arange(start, tile.stop)
                    scores = scores.masked_fill(places > torch.arange(q_len)[:, None], -torch.inf)
                new = torch.maximum(top, scores.detach().amax(-1, keepdim=True))  # any constant gives the gradient
                shift, kept = torch.exp(scores - new), torch.exp(top - new)
                total = total * kept + shift.sum(-1, keepdim=True)
                mixed = mixed * kept + (shift * of_value[tile].T if by_value_token else shift) @ v[tile]
                top = new
            if length:
                output[b, h] = mixed / total * (1.0 if by_value_token else of_value)
                lse[b, h] = (top + torch.log(total)).squeeze(-1)
    return output.to(query.dtype), lse


def part(scale, b, h):
    return scale[min(b, len(scale) - 1), min(h, scale.shape[1] - 1)]  # (1 or k_len, 1 or dim)
