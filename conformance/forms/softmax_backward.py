"""The softmax of a backward pass that makes the weights again, with an error at each step, and the sizes of these
errors: what the budgets of gradients of several forms have in common (chapter "accuracy", "Derivation for the forms").
"""

from __future__ import annotations

import torch

from attnspec.conformance.forms.projections import inner_products
from attnspec.conformance.forms.target import Tensors
from attnspec.conformance.gradient_errors import (
    EAGER_STORES,
    Backward,
    WeightErrors,
    delta_errors,
    rounded_weights,
    step_of,
)
from attnspec.conformance.gradient_sums import row_ties
from attnspec.conformance.row_errors import CONFIDENCE
from attnspec.conformance.rows import Arithmetic, Rows, score_ties

SCALE_ROUNDOFFS = 4  # of the scale and of log2(e), as constants and as factors: one error of all scores


def through_softmax(
    scores: torch.Tensor, product: torch.Tensor, x: Tensors, e: Tensors, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights of a head as they are stored, and scale * dS, (q_len, k_len) float64.

    scores: scaled, product: dP, both (q_len, k_len); x: has visible, (q_len, k_len), and grad_lse, (q_len, 1); e: the
    errors whose sizes `softmax_errors` returns. A row that sees no key has weights of 0.
    """
    scores = torch.where(x["visible"], scores * (1 + e["scale"]), 0.0)
    top = torch.where(x["visible"], scores, -torch.inf).amax(-1, keepdim=True).detach()
    parts = torch.where(x["visible"], torch.exp(scores - torch.where(top == -torch.inf, 0.0, top)), 0.0)
    total = parts.sum(-1, keepdim=True)
    p = parts / torch.where(total == 0, 1.0, total)
    delta = (p * product).sum(-1, keepdim=True) + e["delta"]
    again = p * (1 + e["weight"] + e["lse"])
    grad_scores = again * (product + e["product"] - delta + x["grad_lse"]) + e["grad_score"]
    return again + e["stored"], scale * grad_scores


def softmax_errors(rows: Rows, visible: torch.Tensor, backward: Backward) -> tuple[Tensors, Tensors, torch.Tensor]:
    """Return the sizes of the errors of `through_softmax`, random ones, in units of CONFIDENCE, and common ones, and
    scale * dS. Each is (heads, q_len, k_len), but for delta and lse, (heads, q_len, 1), and scale, (heads,).

    visible: (heads, q_len, k_len) bool; backward: its unit is 1. The sizes are those of the budget of gradients:
    `attnspec.conformance.gradient_errors`.
    """
    a, p, ties = rows.arithmetic, rows.p, score_ties(rows)
    errors = WeightErrors.of(rows, visible, ties)
    dim = backward.value.shape[-1]
    product = backward.grad_output @ backward.value.mT
    norm2 = backward.grad_output**2 @ (backward.value**2).mT
    delta = (p * product).sum(-1, keepdim=True)
    row, row_fixed = delta_errors(rows, errors, ties, backward, product, norm2)
    r = torch.where(p > 0, product - delta + backward.grad_lse, 0.0)
    grad_scores = p * r
    step = step_of(rows, backward)
    together = torch.sqrt(torch.maximum(ties, row_ties(rows).mT))  # equal terms have equal errors

    off2 = inner_products(dim, product, torch.sqrt(norm2), a.work) ** 2
    off2 += a.work**2 * (product**2 + delta**2 + backward.grad_lse**2 + 3 * r**2)
    off2 += (a.weights * product.abs()).clamp_min(step) ** 2
    of_weight = rounded_weights(rows, errors)
    coarse = a.weights * p < a.weights_step  # subnormal weights of all rows may round the same way
    of_score = (a.weights * grad_scores.abs()).clamp_min(step) ** 2
    if a.scores:
        of_score = EAGER_STORES * of_score + (of_weight * r) ** 2
        for part in (p * (product - delta), p * backward.grad_lse):
            of_score += (a.weights * part.abs()).clamp_min(step) ** 2
    random = {
        "weight": together * torch.sqrt(errors.work**2 + errors.stored**2),
        "lse": errors.lse,
        "delta": row,
        "product": together * errors.growth * torch.sqrt(off2),
        "grad_score": torch.where(p > 0, together * torch.sqrt(of_score), 0.0),
        "stored": torch.where(coarse, 0.0, together * of_weight),
    }
    largest = torch.where(p > 0, product.abs(), 0.0).amax(-1, keepdim=True)
    lost = torch.where(p < a.weights_lost, p, 0.0) + torch.where(p > 0, a.flushed, 0.0) + 2 * errors.lost
    fixed = {
        "scale": torch.full(p.shape[:1], SCALE_ROUNDOFFS * a.work, dtype=torch.float64),
        "weight": errors.shared,
        "delta": row_fixed,
        "grad_score": lost * (2 * largest + backward.grad_lse.abs()),
        "stored": torch.where(coarse, of_weight, 0.0) + lost,
    }
    return random, fixed, rows.scale * grad_scores


def summed(left: torch.Tensor, right: torch.Tensor, a: Arithmetic) -> tuple[torch.Tensor, torch.Tensor]:
    """Return left @ right, a sum over keys or rows, and what its roundings amount to in units of CONFIDENCE: two a
    term, and for 16 bits half of one more, of its partial sums."""
    total, square = left @ right, left**2 @ right**2
    steps = (2.5 if a.drifts else 2.0) * left.shape[-1]
    return total, a.work * steps / CONFIDENCE * torch.sqrt(total**2 + square)
