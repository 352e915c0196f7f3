"""The bias of ALiBi: all distances at once, times the slopes, in float32, float64 for slopes of float64."""

import torch


def target(alibi_slopes, q_len, k_len, *, form="symmetric", alignment="upper_left", key_lengths=None):
    if alibi_slopes.ndim not in (1, 2) or not alibi_slopes.dtype.is_floating_point:
        raise ValueError("alibi_slopes needs a floating dtype and shape (heads,) or (batch, heads)")
    wide = torch.promote_types(alibi_slopes.dtype, torch.float32)
    slopes = alibi_slopes if alibi_slopes.ndim == 2 else alibi_slopes[None]
    ends = torch.tensor([k_len]) if key_lengths is None else key_lengths.long()
    if len(slopes) > 1 and len(ends) > 1 and len(slopes) != len(ends):
        raise ValueError("alibi_slopes and key_lengths need one batch")
    offset = ends - q_len if alignment == "lower_right" else torch.zeros_like(ends)
    row = torch.arange(q_len)[:, None] + offset[:, None, None, None]  # (batch, 1, q_len, 1)
    distance = row - torch.arange(k_len)  # (batch, 1, q_len, k_len)
    if form == "symmetric":
        distance = distance.abs()
    return -slopes.to(wide)[:, :, None, None] * distance
