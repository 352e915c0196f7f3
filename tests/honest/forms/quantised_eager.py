"""Attention over 8-bit keys and values in the dtype of the query throughout, class eager: stored numbers fit into it,
and scales are folded into the query, the scores, the weights and the output, each of which is rounded."""

import torch


def target(
    query, key, value, key_scale, value_scale, *, is_causal=False, scale=None, enable_gqa=False, key_lengths=None
):
    dtype, heads, k_len = query.dtype, query.shape[1], key.shape[2]
    wide = torch.promote_types(dtype, torch.float32)
    of_key, of_value = checked(key, key_scale).to(wide), checked(value, value_scale).to(wide)
    keys, values = key.to(dtype), value.to(dtype)
    hidden = torch.zeros(len(query), 1, query.shape[2], k_len, dtype=torch.bool)
    if key_lengths is not None:
        beyond = torch.arange(k_len) >= key_lengths[:, None]  # (batch, k_len)
        keys, values, of_key, of_value = (
            torch.where(beyond[:, None, :, None], 0.0, x) if x.shape[2] == k_len else x
            for x in (keys, values, of_key, of_value)
        )
        hidden = hidden | beyond[:, None, None]
    if is_causal:
        hidden = hidden | torch.ones(hidden.shape[-2:], dtype=torch.bool).triu(1)
    keys, values, of_key, of_value = (
        x.repeat_interleave(heads // key.shape[1], 1) if x.shape[1] > 1 or enable_gqa else x
        for x in (keys, values, of_key, of_value)
    )
    by_token, by_value_token = of_key.shape[2] > 1, of_value.shape[2] > 1
    scores = (query if by_token else (query * of_key).to(dtype)) @ keys.mT
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = ((scores * of_key.mT).to(dtype) if by_token else scores).masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    output = (weights * of_value.mT).to(dtype) @ values if by_value_token else (weights @ values) * of_value
    return output.to(dtype), torch.logsumexp(scores.to(wide), -1)


def checked(stored, scale):
    if stored.dtype not in (torch.int8, torch.float8_e4m3fn) or not scale.is_floating_point():
        raise TypeError(f"{stored.dtype} with scales of {scale.dtype}")
    if scale.ndim == 0:
        return scale.reshape(1, 1, 1, 1)
    if scale.ndim != 4 or torch.broadcast_shapes(scale.shape, stored.shape) != stored.shape:
        raise ValueError(f"scale {tuple(scale.shape)} for {tuple(stored.shape)}")
    return scale
