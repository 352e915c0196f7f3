"""Softcap: scores kept between -c and c by a tanh (chapter "softcap")."""

from __future__ import annotations

import math

import torch

from attnspec.spec.errors import InputError


def apply(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Return c tanh(s / c) of the scaled scores, before bias and masks; the scores themselves for a cap of 0 or None.

    scores: (..., q_len, k_len). Raises InputError as `check` does. Rules: `softcap.scores`, `softcap.none`. Source:
    Gemma Team 2024 (Gemma 2), section 2; Bello et al. 2016, appendix A.1.
    """
    check(softcap)
    return softcap * torch.tanh(scores / softcap) if softcap else scores


def slope(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Return the derivative of `apply` by the scaled scores, 1 - tanh(s / c)^2, of their shape; 1 for a cap of 0 or
    None.

    Raises InputError as `check` does. Rule: `softcap.gradient`.
    """
    check(softcap)
    return 1 - torch.tanh(scores / softcap) ** 2 if softcap else torch.ones_like(scores)


def check(softcap: float | None) -> None:
    """Raise InputError for a cap below 0, infinite or NaN. Rule: `softcap.range`."""
    if softcap is not None and not 0 <= softcap < math.inf:
        raise InputError(f"softcap is {softcap}: use a number of 0 or more, 0 or None for no cap")
