"""Merging attention over disjoint parts of the keys by output and lse (chapter "FlashAttention")."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch

from attnspec.spec.errors import InputError


class Part(NamedTuple):
    """Attention over some of the keys. output: (..., q_len, value_dim); lse: (..., q_len), natural logarithm, -inf in
    a row that sees none of them."""

    output: torch.Tensor
    lse: torch.Tensor


def merge(parts: Sequence[Part]) -> Part:
    """Return attention over the keys of all parts, in float64; the order of the parts does not matter.

    parts: one or more, over disjoint sets of keys, of equal shapes. Returns output (..., q_len, value_dim) and lse
    (..., q_len). Raises InputError without parts and where their shapes differ. Rules: `flash.merge-associative`,
    `flash.merge-empty`. Source: Dao et al. 2023, "Flash-Decoding for long-context inference".
    """
    if not parts:
        raise InputError("no parts to merge: give one or more")
    first = parts[0]
    if first.output.shape[:-1] != first.lse.shape:
        raise InputError(
            f"output {tuple(first.output.shape)} does not fit lse {tuple(first.lse.shape)}: use one lse a row"
        )
    nothing = Part(
        torch.zeros_like(first.output, dtype=torch.float64), torch.full_like(first.lse, -torch.inf, dtype=torch.float64)
    )
    return reduce(merge_two, parts, nothing)


def merge_two(a: Part, b: Part) -> Part:
    """Return attention over the keys of a and of b, in float64.

    a, b: outputs (..., q_len, value_dim) and lse (..., q_len) over disjoint sets of keys. With m the larger lse:

        lse = m + log(exp(lse_a - m) + exp(lse_b - m)),  o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b

    so that no exponential exceeds 1. In a row that a part does not see (lse -inf) its output is not read; where
    neither sees a key, the output is 0 and the lse -inf. Raises InputError where shapes differ. Rules:
    `flash.merge-empty`, `flash.merge-gap`. Source: Milakov and Gimelshein 2018, section 3.1; Rabe and Staats 2021,
    section 3; Dao et al. 2023, "Flash-Decoding for long-context inference".
    """
    if a.output.shape != b.output.shape or a.lse.shape != b.lse.shape:
        raise InputError(f"parts {tuple(a.output.shape)} and {tuple(b.output.shape)} differ in shape: use one")
    lse_a, lse_b = a.lse.double(), b.lse.double()
    top = torch.maximum(lse_a, lse_b)
    top = torch.where(top == -torch.inf, 0.0, top)  # two empty parts have no maximum
    weight_a, weight_b = torch.exp(lse_a - top), torch.exp(lse_b - top)  # (..., q_len), the larger one is 1
    total = weight_a + weight_b  # 0 where both parts are empty
    mixed = weight_a[..., None] * seen(a) + weight_b[..., None] * seen(b)  # (..., q_len, value_dim)
    output = mixed / torch.where(total == 0, 1.0, total)[..., None]
    return Part(output, top + torch.log(total))


def seen(part: Part) -> torch.Tensor:
    """Return the output in float64, 0 in the rows that see no key, whatever the part holds there."""
    return torch.where(part.lse[..., None] == -torch.inf, 0.0, part.output.double())
