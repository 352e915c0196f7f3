"""What the roundings of a linear layer are, and what they do to attention over its results (chapter "accuracy",
"Budgets of the forms")."""

from __future__ import annotations

import torch

from attnspec.conformance.rows import Rows, spread


def inner_products(terms: int, total: torch.Tensor, norm: torch.Tensor, work: float) -> torch.Tensor:
    """Return how far inner products are off, in units of CONFIDENCE: w sqrt((n/3 + 1) S^2 + (n/6 + 1) N^2).

    terms: n, of each product; total: S, the products; norm: N, roots of the sums of the squared terms. It is the term
    "Scores" of the chapter: partial sums in an order that has nothing to do with the terms, the products, a sum after.
    """
    return work * torch.sqrt((terms / 3 + 1) * total**2 + (terms / 6 + 1) * norm**2)


def layer_error(
    tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, work: float, stored: float
) -> torch.Tensor:
    """Return how far x W^T + b is off, in units of CONFIDENCE, float64 (..., out).

    tokens: (..., in); weight: (out, in); bias: (out,); work, stored: unit roundoffs of the arithmetic and of the dtype
    in which the product and the sum with the bias are each stored.
    """
    x, w = tokens.double(), weight.double()
    total, norm = x @ w.T, torch.sqrt(x**2 @ (w**2).T)
    error2 = inner_products(x.shape[-1], total, norm, work) ** 2 + (stored * total) ** 2
    if bias is not None:
        error2 = error2 + (stored * (total + bias.double())) ** 2
    return torch.sqrt(error2)


def shared_term(rows: Rows, slope: torch.Tensor, error: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
    """Return sqrt(sum_n e_n^2 (sum_j p_j a_jn x_j)^2), in units of CONFIDENCE: what errors do that all keys of a row
    share.

    slope: a_jn, the derivative of the score of key j by number n, (heads, rows, k_len, n); error: e_n, (heads, rows,
    n), likewise. x_j is v_j - o, (heads, k_len, value_dim) values give (heads, rows, value_dim), or 1
    where `values` is None, (heads, rows, 1).
    """
    weighted = rows.p[..., None] * slope  # (heads, rows, k_len, n)
    moved = weighted.sum(2)[..., None]  # (heads, rows, n, 1)
    if values is not None:
        moved = weighted.transpose(-1, -2) @ values[:, None] - moved * rows.o[..., None, :]
    return torch.sqrt((error[..., None] ** 2 * moved**2).sum(2))


def apart_term(rows: Rows, error: torch.Tensor, ties: torch.Tensor) -> torch.Tensor:
    """Return sqrt(t) S(p e), (heads, rows, value_dim), in units of CONFIDENCE: what errors of scores do that are each
    key's own.

    error: (heads, rows, k_len), likewise; ties: t, (heads, rows, 1).
    """
    return torch.sqrt(ties) * spread(rows, rows.p * error)
