"""Dropout on attention weights: each is dropped with probability p, the others are divided by 1 - p (chapter
"dropout")."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnspec.spec.errors import InputError


def keep_mask(shape: Sequence[int], p: float, generator: torch.Generator | None = None) -> torch.Tensor:
    """Draw which weights are kept: bool of `shape`, each True with probability 1 - p, independently.

    shape: that of the weights, (batch, q_heads, q_len, k_len). p: the probability of a drop, 0 to 1; 0 keeps all and 1
    keeps none. generator: the source of the draws, None for torch's own; the same seed gives the same mask. Raises
    InputError for p outside [0, 1]. Rules: `dropout.rate`, `dropout.seed`, `dropout.range`. Source: Srivastava et al.
    2014, section 4.
    """
    check_probability(p)
    uniform = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)  # in [0, 1)
    return uniform >= p


def apply(weights: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """Return the weights after inverted dropout: w / (1 - p) where kept, exactly 0 where dropped.

    weights: (batch, q_heads, q_len, k_len), of any floating dtype, after the softmax. keep: bool of the same shape,
    from `keep_mask` with the same p. Returns the shape and dtype of the weights. The gradient passes through the same
    mask and the same factor. Raises InputError for p outside [0, 1], and for a mask of another shape or dtype. Rules:
    `dropout.inverted`, `dropout.on-weights`, `dropout.zero`, `dropout.one`, `dropout.backward-mask`, `dropout.range`.
    Source: Srivastava et al. 2014, section 10 (the inverted form).
    """
    check_probability(p)
    if keep.dtype != torch.bool or keep.shape != weights.shape:
        raise InputError(
            f"keep is {keep.dtype} {tuple(keep.shape)}: use bool {tuple(weights.shape)}, the shape of weights"
        )
    factor = 1 / (1 - p) if p < 1 else 0.0
    return torch.where(keep, weights * factor, 0.0)


def check_probability(p: float) -> None:
    """Raise InputError where p is no probability: below 0, above 1, or NaN. Rule: `dropout.range`."""
    if not 0 <= p <= 1:
        raise InputError(f"dropout is {p}: use a probability from 0 to 1")
