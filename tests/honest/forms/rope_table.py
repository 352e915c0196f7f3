"""RoPE by a table of cosines and sines in the dtype of the model and `rotate_half`, all in that dtype: class eager."""

import torch


def tables(largest, rotary_dim, base, dtype):
    inv_freq = 1.0 / base ** (torch.arange(0, rotary_dim, 2).float() / rotary_dim)
    angles = torch.outer(torch.arange(largest + 1).float(), inv_freq)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_half(x, interleaved):
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def target(x, positions, *, rotary_dim=None, base=10000.0, interleaved=False):
    batch, _, length, head_dim = x.shape
    rotary_dim = rotary_dim if rotary_dim is not None else head_dim
    assert rotary_dim % 2 == 0
    assert 0 < rotary_dim <= head_dim
    assert 0 < base < float("inf")
    assert positions.shape in ((length,), (batch, length))
    cos, sin = (table[positions] for table in tables(int(positions.max()), rotary_dim, base, x.dtype))
    if interleaved:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    else:
        cos, sin = torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
    if positions.ndim == 2:
        cos, sin = cos[:, None], sin[:, None]
    part = x[..., :rotary_dim]
    rotated = part * cos + rotate_half(part, interleaved) * sin
    return torch.cat([rotated, x[..., rotary_dim:]], -1)
