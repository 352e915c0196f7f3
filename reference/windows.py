"""Windows: a row sees the keys near its place on the diagonal (chapter "window")."""

from __future__ import annotations

import torch

from attnspec.spec.errors import InputError


def diagonal(
    q_len: int, k_len: int, alignment: str = "upper_left", key_lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """Return d_i, the key at which the diagonal meets row i; int64 (q_len, 1), or (batch, 1, q_len, 1) with key_lengths
    at the lower right.

    `upper_left`: i. `lower_right`: i + (k_len - q_len); with key_lengths, (batch,), i + (key_lengths[batch] - q_len).
    d_i may lie before the first key and after the last. Raises InputError for another alignment. Rules:
    `window.corner`, `mask.causal-upper-left`, `mask.causal-lower-right`, `key-lengths.causal`. Source: PyTorch
    `torch.nn.attention.bias`; flash-attention, `flash_attn_with_kvcache`.
    """
    end = k_len if key_lengths is None else key_lengths[:, None, None, None]  # (batch, 1, 1, 1)
    offsets = {"upper_left": 0, "lower_right": end - q_len}
    if alignment not in offsets:
        raise InputError(f"causal_alignment is {alignment!r}: use one of {', '.join(offsets)}")
    return torch.arange(q_len)[:, None] + offsets[alignment]


def visible(
    q_len: int,
    k_len: int,
    window_size: tuple[int, int],
    alignment: str = "upper_left",
    key_lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the window, bool of the shape of `diagonal` but k_len wide: True where d_i - left <= j <= d_i + right.

    window_size: (left, right), -1 for no bound. The causal triangle is not part of it. Raises InputError as `diagonal`
    and `check` do. Rules: `window.bounds`, `window.corner`, `window.range`. Source: Beltagy et al. 2020
    (Longformer), section 3.1; flash-attention, argument `window_size`.
    """
    check(window_size)
    left, right = window_size
    distance = torch.arange(k_len) - diagonal(q_len, k_len, alignment, key_lengths)  # j - d_i, (..., q_len, k_len)
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left != -1:
        seen = seen & (distance >= -left)
    if right != -1:
        seen = seen & (distance <= right)
    return seen


def check(window_size: tuple[int, int]) -> None:
    """Raise InputError unless window_size is two whole numbers, each 0 or more, or -1. Rule: `window.range`."""
    sides = tuple(window_size) if isinstance(window_size, tuple | list) else ()
    if len(sides) != 2 or not all(type(side) is int and side >= -1 for side in sides):
        raise InputError(f"window_size is {window_size!r}: use (left, right), numbers of keys or -1 for no bound")
