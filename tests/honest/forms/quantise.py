"""Keys or values as 8-bit numbers by a float32 quotient (float64 for float64), cut, and rounded by the conversion."""

import torch


def target(x, scale, dtype):
    if dtype not in (torch.int8, torch.float8_e4m3fn) or not scale.is_floating_point():
        raise TypeError(f"{dtype} with scales of {scale.dtype}")
    fits = scale.ndim == 4 and all(a in (1, b) for a, b in zip(scale.shape, x.shape, strict=True))
    if scale.ndim and not fits:
        raise ValueError(f"scale {tuple(scale.shape)}")
    wide = torch.promote_types(x.dtype, torch.float32)
    quotient = x.to(wide) / scale.to(wide)
    if dtype == torch.int8:
        return quotient.round().clamp(-128, 127).to(dtype)
    return quotient.clamp(-448, 448).to(dtype)
