"""Which keys a query sees: boolean and additive masks, the causal triangle, and all of it (chapter "masks")."""

from __future__ import annotations

import torch

from attnspec.reference import lengths, windows
from attnspec.spec.errors import InputError


def causal(
    q_len: int, k_len: int, alignment: str = "upper_left", key_lengths: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the causal triangle, (q_len, k_len), True where query i sees key j.

    `upper_left`: j <= i. `lower_right`: j <= i + (k_len - q_len), the last query sees every key. With key_lengths,
    (batch,), the keys of a batch element end there: `lower_right` is j <= i + (key_lengths[batch] - q_len), and its
    triangle is (batch, 1, q_len, k_len). Raises InputError for another alignment. Rules: `mask.causal-upper-left`,
    `mask.causal-lower-right`, `key-lengths.causal`. Source: PyTorch `torch.nn.attention.bias`; flash-attention,
    `flash_attn_with_kvcache`.
    """
    query_position = windows.diagonal(q_len, k_len, alignment, key_lengths)  # ([batch, 1,] q_len, 1)
    return torch.arange(k_len) <= query_position


def visible(
    shape: tuple[int, int, int, int],
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    key_lengths: torch.Tensor | None = None,
    window_size: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Return the visible set, bool (batch, q_heads, q_len, k_len): True where the key takes part in the row's softmax.

    A slot is hidden where its key does not exist (j >= key_lengths[batch]), where a bool mask is False, where an
    additive mask is -inf, where the causal triangle hides it, or where it lies outside the window; each applies on its
    own. Raises InputError where the mask does not broadcast, or lengths or window do not fit. Rules:
    `key-lengths.visible`, `mask.bool`, `mask.additive`, `mask.broadcast`, `mask.combine`, `window.combine`.
    """
    seen = torch.ones(shape, dtype=torch.bool)
    if key_lengths is not None:
        seen = seen & lengths.visible(shape, key_lengths)
    if attn_mask is not None:
        keep = attn_mask if attn_mask.dtype == torch.bool else attn_mask != -torch.inf
        seen = seen & broadcast(keep, shape)
    if is_causal:
        seen = seen & causal(shape[-2], shape[-1], causal_alignment, key_lengths)
    if window_size is not None:
        seen = seen & windows.visible(shape[-2], shape[-1], window_size, causal_alignment, key_lengths)
    return seen


def bias(shape: tuple[int, int, int, int], attn_mask: torch.Tensor | None) -> torch.Tensor:
    """Return what is added to the scaled scores, float64 (batch, q_heads, q_len, k_len): 0 for a bool mask or none.

    Rules: `mask.additive`, `mask.broadcast`.
    """
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return torch.zeros(shape, dtype=torch.float64)
    return broadcast(attn_mask.double(), shape)


def broadcast(mask: torch.Tensor, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """Return the mask expanded to (batch, q_heads, q_len, k_len). Raises InputError. Rule: `mask.broadcast`."""
    try:
        return mask.expand(shape)
    except RuntimeError:
        raise InputError(f"attn_mask {tuple(mask.shape)} does not broadcast to {shape}") from None
