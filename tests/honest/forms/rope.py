"""RoPE with float32 angles, in float32 (float64 for float64), with a backward of its own."""

import torch


class Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, interleaved):
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return turned(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        return turned(grad, cos, -sin, ctx.interleaved), None, None, None


def turned(x, cos, sin, interleaved):
    half = cos.shape[-1]
    part, rest = x[..., : 2 * half].to(cos.dtype), x[..., 2 * half :]
    if interleaved:
        x1, x2 = part[..., 0::2], part[..., 1::2]
    else:
        x1, x2 = part[..., :half], part[..., half:]
    y1 = x1 * cos - x2 * sin
    y2 = x1 * sin + x2 * cos
    out = torch.stack([y1, y2], -1).flatten(-2) if interleaved else torch.cat([y1, y2], -1)
    return torch.cat([out.to(x.dtype), rest], -1)


def target(x, positions, *, rotary_dim=None, base=10000.0, interleaved=False):
    batch, _, length, head_dim = x.shape
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    if rotary_dim % 2 or not 2 <= rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim {rotary_dim}")
    if not 0 < base < float("inf"):
        raise ValueError(f"base {base}")
    if tuple(positions.shape) not in ((length,), (batch, length)):
        raise ValueError(f"positions {tuple(positions.shape)}")
    wide = torch.promote_types(x.dtype, torch.float32)
    pair = torch.arange(rotary_dim // 2, dtype=torch.float32)
    inv_freq = 1.0 / base ** (2 * pair / rotary_dim)
    angle = positions[..., None].to(torch.float32) * inv_freq
    if angle.ndim == 3:
        angle = angle[:, None]  # (batch, 1, length, pairs)
    cos, sin = torch.cos(angle).to(wide), torch.sin(angle).to(wide)
    return Rotation.apply(x, cos, sin, interleaved)
