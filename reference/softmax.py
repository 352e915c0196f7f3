"""The softmax over visible keys, and its logarithm of the sum of exponentials (chapters "softmax and lse", "sinks")."""

from __future__ import annotations

import torch


def lse(scores: torch.Tensor, visible: torch.Tensor, sink: torch.Tensor | None = None) -> torch.Tensor:
    """Return log(exp(z) + sum_j exp(s_j)) over the visible keys of each row; -inf for a row that sees none, without z.

    scores, visible: (..., q_len, k_len); sink: z of each row, broadcasts to (..., q_len), None for none. Returns (...,
    q_len), natural logarithm. The row's maximum is taken out first, so that no exponential overflows. Rules:
    `softmax.lse`, `softmax.lse-empty-row`, `sinks.lse`.
    """
    scores = with_sink(torch.where(visible, scores, -torch.inf), sink)  # (..., q_len, 1 + k_len)
    top = scores.amax(-1, keepdim=True)  # (..., q_len, 1)
    top = torch.where(top == -torch.inf, 0.0, top)  # an empty row has no maximum
    total = torch.exp(scores - top).sum(-1)  # (..., q_len)
    return top.squeeze(-1) + torch.log(total)


def softmax(scores: torch.Tensor, visible: torch.Tensor, sink: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weights p_j = exp(s_j) / (exp(z) + sum_i exp(s_i)) over the visible keys; exactly 0 at hidden keys.

    scores, visible: (..., q_len, k_len); sink: z of each row, broadcasts to (..., q_len), None for none. Returns the
    shape of the scores. A row that sees no key has weight 0 everywhere. Rules: `softmax.weights`,
    `mask.fully-masked-row`, `sinks.weight`. Source: Milakov and Gimelshein 2018, section 2 (safe softmax).
    """
    scores = with_sink(torch.where(visible, scores, -torch.inf), sink)  # (..., q_len, 1 + k_len)
    top = scores.amax(-1, keepdim=True)  # (..., q_len, 1)
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(scores - top)  # (..., q_len, 1 + k_len)
    total = weights.sum(-1, keepdim=True)  # (..., q_len, 1)
    return torch.where(total == 0, 0.0, weights / torch.where(total == 0, 1.0, total))[..., 1:]


def with_sink(scores: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """Return the scores of each row with its sink before them, (..., q_len, 1 + k_len); -inf where there is none."""
    first = torch.full((*scores.shape[:-1], 1), -torch.inf, dtype=scores.dtype)
    if sink is not None:
        first.copy_(sink.expand(scores.shape[:-1])[..., None])
    return torch.cat([first, scores], -1)
