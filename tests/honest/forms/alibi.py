"""Attention with slopes of ALiBi in float32, float64 for float64: the bias of all slots is added to the scores."""

import torch


def target(query, key, value, alibi_slopes, *, is_causal=False, causal_alignment="upper_left", form="symmetric",
           alignment=None, scale=None, enable_gqa=False, key_lengths=None):  # fmt: skip
    dtype, (batch, heads, q_len, head_dim), k_len = query.dtype, query.shape, key.shape[2]
    if not alibi_slopes.dtype.is_floating_point or tuple(alibi_slopes.shape) not in ((heads,), (batch, heads)):
        raise ValueError("alibi_slopes is floating, (q_heads,) or (batch, q_heads)")
    wide = torch.promote_types(dtype, torch.float32)
    group = heads // key.shape[1]
    key, value = (x.to(wide).repeat_interleave(group, 1) for x in (key, value))
    scale = head_dim**-0.5 if scale is None else scale
    scores = query.to(wide) @ key.transpose(-1, -2) * scale  # (batch, heads, q_len, k_len)
    lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths.long()
    rows, keys = torch.arange(q_len)[:, None], torch.arange(k_len)
    ends = (lengths - q_len)[:, None, None, None]
    offset = ends if (alignment or causal_alignment) == "lower_right" else 0 * ends
    distance = rows + offset - keys  # (batch, 1, q_len, k_len)
    if form == "symmetric":
        distance = distance.abs()
    slopes = alibi_slopes.to(wide).expand(batch, heads)[:, :, None, None]
    scores = scores - slopes * distance
    visible = keys < lengths[:, None, None, None]
    if is_causal:
        visible = visible & (keys <= rows + (ends if causal_alignment == "lower_right" else 0))
    scores = scores.masked_fill(~visible, -torch.inf)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
    output = weights @ value.masked_fill(~(keys < lengths[:, None, None, None]).transpose(-1, -2), 0.0)
    return output.to(dtype), torch.logsumexp(scores, -1)
