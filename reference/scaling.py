"""Why scores are divided by sqrt(d_k): the variance of q.k, the derivative of the softmax (chapter "attention")."""

from __future__ import annotations

import torch

from attnspec.reference.softmax import softmax
from attnspec.spec.errors import InputError


def score_variance(query: torch.Tensor, key: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return the variance of scale * (q_n . k_n) over the pairs n: the mean square of the distance from the mean.

    query, key: (pairs, d_k), of any floating dtype. Returns a float64 scalar. For independent elements of mean 0 and
    variance 1 it tends to scale^2 * d_k: d_k without a scale, 1 with 1/sqrt(d_k). Raises InputError where the shapes
    differ or there is no pair. Source: Vaswani et al. 2017, section 3.2.1, footnote 4.
    """
    if query.ndim != 2 or query.shape != key.shape or len(query) == 0:
        raise InputError(f"query {tuple(query.shape)} and key {tuple(key.shape)}: use one shape, (pairs, d_k)")
    scores = scale * (query.double() * key.double()).sum(-1)  # (pairs,)
    return ((scores - scores.mean()) ** 2).mean()


def softmax_jacobian(scores: torch.Tensor) -> torch.Tensor:
    """Return the derivative of the softmax, dp_i / ds_j = p_i (delta_ij - p_j): the matrix diag(p) - p p^T.

    scores: (..., k_len), of any floating dtype. Returns float64 (..., k_len, k_len). Where one weight is near 1 every
    element is near 0: the softmax is saturated. Raises InputError for scores without a dimension. Source: Vaswani et
    al. 2017, section 3.2.1.
    """
    if scores.ndim == 0:
        raise InputError("scores has no dimension: use (..., k_len)")
    scores = scores.double()
    weights = softmax(scores, torch.ones_like(scores, dtype=torch.bool))  # (..., k_len)
    outer = weights[..., :, None] * weights[..., None, :]  # (..., k_len, k_len)
    return torch.diag_embed(weights) - outer


def jacobian_norm(scores: torch.Tensor) -> torch.Tensor:
    """Return the Frobenius norm of the softmax's derivative at scores; 0 where the softmax is saturated.

    scores: (..., k_len), of any floating dtype. Returns float64 (...). With scores = scale * z the derivative by the
    products z has |scale| times this norm. Raises InputError as `softmax_jacobian` does.
    """
    return (softmax_jacobian(scores) ** 2).sum((-2, -1)).sqrt()
