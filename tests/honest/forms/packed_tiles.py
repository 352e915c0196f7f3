"""Packed attention in tiles that lie on multiples of TILE tokens of the pack, wherever its members begin: what a tile
holds of others is taken as 0 when it is loaded, and its scores are hidden. Online softmax, gradients by autograd."""

from itertools import pairwise

import torch

TILE = 4


def checked(cu_seqlens, total):
    if cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point():
        raise ValueError("boundaries are whole numbers, (batch + 1,)")
    if cu_seqlens[0] != 0 or cu_seqlens[-1] > total or (cu_seqlens.diff() < 0).any():
        raise ValueError("boundaries go from 0 to the number of tokens at most, and never fall")
    return list(pairwise(cu_seqlens.tolist()))


def tile_of(tensor, base, start, end):
    place = torch.arange(base, min(base + TILE, len(tensor)))
    own = (place >= start) & (place < end)
    return torch.where(own[:, None, None], tensor[place], 0.0).transpose(0, 1), place, own


def target(query, key, value, cu_seqlens_q, cu_seqlens_k, *, is_causal=False, causal_alignment="upper_left", scale=None,
           window_size=None, key_lengths=None):  # fmt: skip
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    rows, columns = checked(cu_seqlens_q, len(query)), checked(cu_seqlens_k, len(key))
    if len(rows) != len(columns):
        raise ValueError("as many members of queries as of keys are needed")
    if key_lengths is not None:
        stored = cu_seqlens_k.diff()
        if (key_lengths < 0).any() or (key_lengths > stored).any():
            raise ValueError("a length is below 0 or above the keys of its member")
        columns = [(start, start + n) for (start, _), n in zip(columns, key_lengths.tolist(), strict=True)]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[1] // key.shape[1]
    left, right = window_size or (-1, -1)
    if is_causal:
        right = 0
    query, key, value = (x.to(wide) for x in (query, key, value))
    outputs, lses = [], []
    for (q_start, q_end), (k_start, k_end) in zip(rows, columns, strict=True):
        q = query[q_start:q_end].transpose(0, 1)  # (q_heads, q_len, head_dim)
        diagonal = torch.arange(q_end - q_start)
        if causal_alignment == "lower_right":
            diagonal = diagonal + (k_end - k_start) - (q_end - q_start)
        top = torch.full(q.shape[:2], -torch.inf, dtype=wide)
        total = torch.zeros_like(top)
        mixed = torch.zeros(*q.shape[:2], value.shape[-1], dtype=wide)
        for base in range(k_start - k_start % TILE, k_end, TILE):
            k, place, own = tile_of(key, base, k_start, k_end)
            v, _, _ = tile_of(value, base, k_start, k_end)
            k, v = (x.repeat_interleave(group, 0) for x in (k, v))
            apart = place - k_start - diagonal[:, None]  # (q_len, tile)
            visible = own.expand_as(apart)
            if right >= 0:
                visible = visible & (apart <= right)
            if left >= 0:
                visible = visible & (apart >= -left)
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~visible, -torch.inf)
            higher = torch.maximum(top, scores.detach().amax(-1))
            at = torch.where(higher == -torch.inf, 0.0, higher)
            kept = torch.exp(top - at)
            weights = torch.exp(scores - at[..., None])
            total = total * kept + weights.sum(-1)
            mixed = mixed * kept[..., None] + weights @ v
            top = higher
        empty = total == 0
        total = torch.where(empty, 1.0, total)
        outputs.append((mixed / total[..., None]).transpose(0, 1))
        lses.append((torch.log(total) + torch.where(empty, 0.0, top)).masked_fill(empty, -torch.inf))
    behind = len(query) - rows[-1][1]
    outputs.append(torch.zeros(behind, query.shape[1], value.shape[-1], dtype=wide))
    lses.append(torch.full((query.shape[1], behind), -torch.inf, dtype=wide))
    return torch.cat(outputs).to(dtype), torch.cat(lses, -1)
