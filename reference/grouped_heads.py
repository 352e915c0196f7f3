"""Multi-head, multi-query and grouped-query attention: which key head a query head reads (chapter "grouped heads")."""

from __future__ import annotations

import torch

from attnspec.spec.errors import InputError


def expand(heads: torch.Tensor, q_heads: int) -> torch.Tensor:
    """Return a key or value tensor with one head for every query head.

    heads: (batch, kv_heads, k_len, dim). Returns (batch, q_heads, k_len, dim), where head i is head floor(i / g) of
    the input and g = q_heads / kv_heads: contiguous groups. kv_heads = q_heads is multi-head, 1 is multi-query
    attention. Raises InputError where q_heads is no multiple of kv_heads. Rule: `grouped.head-map`. Source: Ainslie et
    al. 2023, section 2.2.
    """
    kv_heads = heads.shape[1]
    if kv_heads == 0 or q_heads % kv_heads:
        raise InputError(f"{q_heads} query heads cannot share {kv_heads} key and value heads: use a multiple")
    group = q_heads // kv_heads
    return heads.repeat_interleave(group, dim=1)
