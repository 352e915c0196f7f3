"""Packed attention, a member at a time, in float32, float64 for float64, with lse and gradients by autograd."""

from itertools import pairwise

import torch


def checked(cu_seqlens, total):
    if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError("cu_seqlens is an int32 or int64 tensor (batch + 1,)")
    ends = cu_seqlens.tolist()
    if ends[0] != 0 or ends != sorted(ends) or ends[-1] > total:
        raise ValueError(f"cu_seqlens {ends}: from 0, never falling, to {total} at most")
    return ends


def target(query, key, value, cu_seqlens_q, cu_seqlens_k, *, is_causal=False, causal_alignment="upper_left", scale=None,
           window_size=None, key_lengths=None):  # fmt: skip
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    starts_q, starts_k = checked(cu_seqlens_q, len(query)), checked(cu_seqlens_k, len(key))
    if len(starts_q) != len(starts_k):
        raise ValueError("queries and keys have different numbers of members")
    stored = [end - start for start, end in pairwise(starts_k)]
    lengths = stored if key_lengths is None else key_lengths.tolist()
    if any(not 0 <= length <= most for length, most in zip(lengths, stored, strict=True)):
        raise ValueError(f"key_lengths {lengths}: 0 to {stored}")
    group = query.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    outputs, lses = [], []
    for b, length in enumerate(lengths):
        first = starts_k[b]
        q = query[starts_q[b] : starts_q[b + 1]].to(wide).transpose(0, 1)  # (q_heads, q_len, head_dim)
        k = key[first : first + length].to(wide).transpose(0, 1).repeat_interleave(group, 0)
        v = value[first : first + length].to(wide).transpose(0, 1).repeat_interleave(group, 0)
        scores = q @ k.transpose(-1, -2) * scale  # (q_heads, q_len, k_len)
        corner = length - q.shape[1] if causal_alignment == "lower_right" else 0
        left, right = window_size or (-1, -1)
        right = 0 if is_causal else right
        apart = torch.arange(length) - torch.arange(q.shape[1])[:, None] - corner
        hidden = torch.zeros_like(apart, dtype=torch.bool)
        if right >= 0:
            hidden = hidden | (apart > right)
        if left >= 0:
            hidden = hidden | (apart < -left)
        scores = scores.masked_fill(hidden, -torch.inf)
        empty = hidden.all(-1)  # of no key too
        weights = torch.softmax(scores.masked_fill(empty[:, None], 0.0), -1).masked_fill(empty[:, None], 0.0)
        outputs.append((weights @ v).transpose(0, 1))
        lses.append(torch.logsumexp(scores.masked_fill(empty[:, None], 0.0), -1).masked_fill(empty, -torch.inf))
    behind = len(query) - starts_q[-1]
    outputs.append(query.new_zeros(behind, query.shape[1], value.shape[-1], dtype=wide))
    lses.append(query.new_full((query.shape[1], behind), -torch.inf, dtype=wide))
    return torch.cat(outputs).to(dtype), torch.cat(lses, 1)
