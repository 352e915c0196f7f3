"""Keys and values dequantised to the dtype of the query, then attention in it; class eager."""

import torch


def target(
    query, key, value, key_scale, value_scale, *, is_causal=False, scale=None, enable_gqa=False, key_lengths=None
):
    keys, values = (rounded(*pair, query.dtype) for pair in ((key, key_scale), (value, value_scale)))
    hidden = torch.zeros(len(query), 1, query.shape[2], key.shape[2], dtype=torch.bool)
    if key_lengths is not None:
        beyond = torch.arange(key.shape[2]) >= key_lengths[:, None]
        keys, values = (x.masked_fill(beyond[:, None, :, None], 0.0) for x in (keys, values))
        hidden = hidden | beyond[:, None, None]
    if is_causal:
        hidden = hidden | torch.ones(hidden.shape[-2:], dtype=torch.bool).triu(1)
    if enable_gqa:
        keys, values = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (keys, values))
    scores = (query @ keys.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    lse = torch.logsumexp(scores.to(torch.promote_types(scores.dtype, torch.float32)), -1)
    return weights @ values, lse


def rounded(stored, scale, dtype):
    assert stored.dtype in (torch.int8, torch.float8_e4m3fn)
    assert scale.is_floating_point()
    assert scale.ndim == 0 or scale.shape == torch.broadcast_shapes(scale.shape, (1, 1, 1, 1))
    wide = torch.promote_types(dtype, torch.float32)
    product = stored.to(wide) * scale.to(wide)
    assert product.shape == stored.shape
    return product.to(dtype)
