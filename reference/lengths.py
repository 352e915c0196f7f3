"""Key lengths: which keys of each batch element exist (chapter "KV cache and key lengths")."""

from __future__ import annotations

import torch

from attnspec.spec.errors import InputError


def visible(shape: tuple[int, int, int, int], key_lengths: torch.Tensor) -> torch.Tensor:
    """Return the slots whose key exists, bool (batch, q_heads, q_len, k_len): True where j < key_lengths[batch].

    shape: (batch, q_heads, q_len, k_len); key_lengths: (batch,), int32 or int64. Raises InputError as `check` does.
    Rules: `key-lengths.visible`, `key-lengths.zero`, `key-lengths.range`. Source: flash-attention,
    `flash_attn_with_kvcache`, argument `cache_seqlens`.
    """
    return existing(shape[0], shape[3], key_lengths)[:, None, None, :].expand(shape)


def clear_absent(keys: torch.Tensor, batch: int, key_lengths: torch.Tensor) -> torch.Tensor:
    """Return a key or value tensor with 0 in the place of every key that does not exist.

    keys: (batch or 1, kv_heads, k_len, dim). Returns (batch, kv_heads, k_len, dim). What stood there, NaN and Inf
    included, is in no product that follows, and its gradient is 0. Raises InputError as `check` does. Rule:
    `key-lengths.absent`.
    """
    return torch.where(existing(batch, keys.shape[2], key_lengths)[:, None, :, None], keys, 0.0)


def existing(batch: int, k_len: int, key_lengths: torch.Tensor) -> torch.Tensor:
    """Return which keys exist, bool (batch, k_len). Raises InputError as `check` does. Rule: `key-lengths.visible`."""
    check(key_lengths, batch, k_len)
    return torch.arange(k_len) < key_lengths[:, None]  # (batch, k_len)


def check(lengths: torch.Tensor, batch: int, longest: int, name: str = "key_lengths") -> None:
    """Raise InputError unless lengths is (batch,), int32 or int64, and each is 0 to `longest`.

    name: what the message calls it. Rule: `key-lengths.range`.
    """
    if lengths.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{name} is {lengths.dtype}: use torch.int32 or torch.int64")
    if lengths.shape != (batch,):
        raise InputError(f"{name} has shape {tuple(lengths.shape)}: use one length a batch element, ({batch},)")
    for b, length in enumerate(lengths.tolist()):
        if not 0 <= length <= longest:
            raise InputError(f"{name} has {length} for batch {b}: use 0 to {longest}")
