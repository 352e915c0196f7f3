"""The softmax over visible keys, and its logarithm of the sum of exponentials (chapter "softmax and lse")."""

from __future__ import annotations

import torch


def lse(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Return log sum_j exp(s_j) over the visible keys of each row; -inf for a row that sees none.

    scores, visible: (..., q_len, k_len). Returns (..., q_len), natural logarithm. The row's maximum is taken out
    first, so that no exponential overflows. Rules: `softmax.lse`, `softmax.lse-empty-row`.
    """
    if scores.shape[-1] == 0:
        return torch.full(scores.shape[:-1], -torch.inf, dtype=scores.dtype)
    scores = torch.where(visible, scores, -torch.inf)
    top = scores.amax(-1, keepdim=True)  # (..., q_len, 1)
    top = torch.where(top == -torch.inf, 0.0, top)  # an empty row has no maximum
    total = torch.exp(scores - top).sum(-1)  # (..., q_len)
    return top.squeeze(-1) + torch.log(total)


def softmax(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Return the weights p_j = exp(s_j) / sum_i exp(s_i) over the visible keys; exactly 0 at hidden keys.

    scores, visible: (..., q_len, k_len). Returns the same shape. A row that sees no key has weight 0 everywhere.
    Rules: `softmax.weights`, `mask.fully-masked-row`. Source: Milakov and Gimelshein 2018, section 2 (safe softmax).
    """
    if scores.shape[-1] == 0:
        return torch.zeros_like(scores)
    scores = torch.where(visible, scores, -torch.inf)
    top = scores.amax(-1, keepdim=True)  # (..., q_len, 1)
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(scores - top)  # (..., q_len, k_len)
    total = weights.sum(-1, keepdim=True)  # (..., q_len, 1)
    return torch.where(total == 0, 0.0, weights / torch.where(total == 0, 1.0, total))
