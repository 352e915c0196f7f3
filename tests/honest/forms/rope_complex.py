"""RoPE as a product of complex numbers: a token's pairs times e^(i angle), the angles from a float64 table."""

import torch


def target(x, positions, *, rotary_dim=None, base=10000.0, interleaved=False):
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > x.shape[-1] or base <= 0 or base == float("inf"):
        raise ValueError(f"rotary_dim {rotary_dim}, base {base}")
    if positions.shape != x.shape[2:3] and positions.shape != (x.shape[0], x.shape[2]):
        raise ValueError(f"positions {tuple(positions.shape)}")
    inv_freq = base ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    table = torch.outer(torch.arange(int(positions.max()) + 1, dtype=torch.float64), inv_freq)
    wide = torch.promote_types(x.dtype, torch.float32)
    turn = torch.polar(torch.ones_like(table), table).to(torch.complex128 if wide == torch.float64 else torch.complex64)
    turn = turn[positions]  # (length, pairs) or (batch, length, pairs)
    if turn.ndim == 3:
        turn = turn[:, None]
    part = x[..., :rotary_dim].to(wide)
    shape = (-1, 2) if interleaved else (2, -1)
    paired = part.unflatten(-1, shape)
    paired = paired if interleaved else paired.transpose(-1, -2)
    rotated = torch.view_as_real(torch.view_as_complex(paired.contiguous()) * turn)
    rotated = rotated if interleaved else rotated.transpose(-1, -2)
    return torch.cat([rotated.flatten(-2).to(x.dtype), x[..., rotary_dim:]], -1)
