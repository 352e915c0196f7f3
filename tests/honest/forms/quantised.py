"""Attention over 8-bit keys and values, dequantised in float32 (float64 for float64)."""

import torch


def dequantised(stored, scale, dtype, absent):
    if stored.dtype not in (torch.int8, torch.float8_e4m3fn) or not scale.dtype.is_floating_point:
        raise TypeError(f"{stored.dtype} with scales of {scale.dtype}")
    fits = scale.ndim == 4 and all(size in (1, of) for size, of in zip(scale.shape, stored.shape, strict=True))
    if scale.ndim and not fits:
        raise ValueError(f"scale {tuple(scale.shape)} for {tuple(stored.shape)}")
    numbers = stored.to(dtype) * scale.to(dtype)
    return numbers if absent is None else torch.where(absent[:, None, :, None], 0.0, numbers)


def target(
    query, key, value, key_scale, value_scale, *, is_causal=False, scale=None, enable_gqa=False, key_lengths=None
):
    wide = torch.promote_types(query.dtype, torch.float32)
    k_len, group = key.shape[2], query.shape[1] // key.shape[1]
    absent = None if key_lengths is None else torch.arange(k_len) >= key_lengths[:, None]  # (batch, k_len)
    keys = dequantised(key, key_scale, wide, absent)  # (batch, kv_heads, k_len, head_dim)
    values = dequantised(value, value_scale, wide, absent)
    if enable_gqa:
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.to(wide) @ keys.transpose(-1, -2) * scale  # (batch, q_heads, q_len, k_len)
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if absent is not None:
        scores = scores.masked_fill(absent[:, None, None], -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    output = weights @ values
    lse = torch.logsumexp(scores, -1)
    return output.to(query.dtype), lse
