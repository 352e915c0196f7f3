"""Attention sinks: a score of each head that takes a share of the weight and gives no value (chapter "sinks")."""

from __future__ import annotations

import torch

from attnspec.spec.errors import InputError


def as_scores(sinks: torch.Tensor, q_heads: int) -> torch.Tensor:
    """Return the sinks as scores of their heads, float64 (q_heads, 1), to broadcast over (batch, q_heads, q_len).

    sinks: (q_heads,), of any floating dtype. Raises InputError for another shape or dtype. Rule: `sinks.shape`.
    """
    check(sinks, q_heads)
    return sinks.double()[:, None]


def backward(
    sinks: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor, grad_lse: torch.Tensor | None
) -> torch.Tensor:
    """Return dz_h = sum_{b,i} exp(z_h - lse_i) (dlse_i - delta_i), float64 (q_heads,).

    lse: (batch, q_heads, q_len), with the sink; delta: of the same shape, sum_c dO_ic o_ic; grad_lse: of the same
    shape, None for 0. A sink of -inf has gradient 0. Rule: `sinks.gradient`.
    """
    z = as_scores(sinks, lse.shape[1])  # (q_heads, 1)
    weight = torch.where(z == -torch.inf, 0.0, torch.exp(z - lse))  # (batch, q_heads, q_len)
    arriving = 0.0 if grad_lse is None else grad_lse.double()
    return (weight * (arriving - delta)).sum((0, 2))


def check(sinks: torch.Tensor, q_heads: int) -> None:
    """Raise InputError unless sinks is one floating number a query head. Rule: `sinks.shape`."""
    if sinks.shape != (q_heads,) or not sinks.dtype.is_floating_point:
        raise InputError(f"sinks is {sinks.dtype} {tuple(sinks.shape)}: use floating numbers, ({q_heads},), one a head")
