"""What a maximum hides: errors that are each within budget and all point one way (chapter "accuracy", "Trends").

A trend is fitted to all errors of a case at once. Errors of honest rounding have no trend beyond that of the constants
that a kernel rounds once; what the fit may show by chance shrinks with the number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from attnspec.conformance.budget import FAST_EXP, FAST_LSE, Budget
from attnspec.reference import grouped_heads
from attnspec.spec.call import Call, Result
from attnspec.spec.dtypes import FLOAT32, FLOAT64, Format, format_of

CONSTANT_ROUNDOFFS = 4  # of the scale, sqrt(scale) on both sides, log2 e and their product
LSE_ROUNDOFFS = 8  # of the maximum through log2 and back, the logarithm, the sum of both


@dataclass(frozen=True)
class Trend:
    """A fitted trend and the largest that an honest kernel may show."""

    fitted: float
    allowed: float

    @property
    def over(self) -> float:
        """The trend as a multiple of the allowed one."""
        return abs(self.fitted) / self.allowed if self.allowed > 0 else 0.0


def temperature(call: Call, got: torch.Tensor, truth: Result, budget: Budget) -> Trend:
    """Return the relative error of the scale that explains the output's errors best, and what is allowed.

    got, truth.output, budget.output: (batch, q_heads, q_len, value_dim); truth.weights: (batch, q_heads, q_len,
    k_len). The output moves by D = sum_j p_j s_j (v_j - o) for a relative change of the scale. The fit is sum(err D /
    b^2) / sum(D^2 / b^2), b the budget; errors of a row are taken to be the same in all columns, those of different
    rows to be independent. Rule: `accuracy.temperature`.
    """
    fmt = format_of(call.query.dtype)
    slope = _slope(call, truth)  # (batch, q_heads, q_len, value_dim)
    share = slope / budget.output
    information = float((share**2).sum())
    if information == 0:
        return Trend(0.0, math.inf)
    error = (got.double() - truth.output) / budget.output
    fitted = float((error * share).sum()) / information
    by_chance = math.sqrt(float((share.abs().sum(-1) ** 2).sum())) / information
    constants = CONSTANT_ROUNDOFFS * _work(fmt).unit_roundoff + (FAST_EXP if fmt.bits == 16 else 0.0)
    return Trend(fitted, constants + by_chance)


def _slope(call: Call, truth: Result) -> torch.Tensor:
    """Return D, the derivative of the output by the logarithm of the scale, (batch, q_heads, q_len, value_dim)."""
    assert truth.weights is not None, "the reference gives weights"
    key, value = (grouped_heads.expand(x.double(), call.query.shape[1]) for x in (call.key, call.value))
    scale = 1 / math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale
    weighted = truth.weights * (scale * (call.query.double() @ key.transpose(-1, -2)))  # p s
    return weighted @ value - weighted.sum(-1, keepdim=True) * truth.output


def mean_of_lse(call: Call, got: torch.Tensor, truth: Result, budget: Budget) -> Trend:
    """Return the signed mean of the lse's errors over the rows that see a key, and what is allowed.

    got, truth.lse, budget.lse: (batch, q_heads, q_len). Rule: `accuracy.lse-mean`.
    """
    assert truth.lse is not None, "the reference gives an lse"
    seen = truth.lse.isfinite()
    count = int(seen.sum())
    if count == 0:
        return Trend(0.0, math.inf)
    fmt = format_of(call.query.dtype)
    fitted = float((got.double() - truth.lse)[seen].mean())
    size = 1 + float(truth.lse[seen].abs().mean())
    constants = LSE_ROUNDOFFS * _work(fmt).unit_roundoff * size + (FAST_LSE if fmt.bits == 16 else 0.0)
    return Trend(fitted, constants + math.sqrt(float((budget.lse[seen] ** 2).sum())) / count)


def _work(fmt: Format) -> Format:
    return FLOAT64 if fmt == FLOAT64 else FLOAT32
