"""What rounding does to a block of query rows: the terms of the error budget (chapter "accuracy").

Rounding errors that nothing ties together add up like a random walk; the bounds on those carry `CONFIDENCE`, lambda in
the chapter. The others are bounded term by term. Every function returns float64.
"""

from __future__ import annotations

import math

import torch

from attnspec.conformance.rows import Rows, covariance, deviation, partial_sums, spread, value_ties

CONFIDENCE = 6.0  # lambda: a bound fails with probability 2 exp(-lambda^2 / 2) = 3e-8 (Higham and Mary 2019)
NORMALISE_ROUNDOFFS = 4  # one reciprocal of 1 ulp, one product, one store in the working precision
LARGEST_SHIFT = 100.0  # of a score: exp(100) stays finite in all that follows, and the row is lost long before


def output_error(rows: Rows, ties: torch.Tensor) -> torch.Tensor:
    """Return the bound on the error of the output, float64 (heads, rows, value_dim). ties: `score_ties(rows)`.

    Rules: `accuracy.output-within-budget`, `accuracy.weights-rounded-once`. Chapter "accuracy", equation (1).
    """
    a = rows.arithmetic
    sd = deviation(rows)  # (heads, rows, value_dim)
    error = _scores_term(rows, sd, ties)
    error += _temperature_term(rows)
    error += a.exponential * sd
    error += _stored_weights_term(rows, sd, ties)
    error += _vanished_term(rows)
    error += _sums_term(rows, ties)
    error = rows.unit * error
    magnitude = rows.unit * rows.o.abs()
    return error + a.output * (magnitude + error) + a.flushed * (rows.count + 1) + a.tiny


def lse_error(rows: Rows, ties: torch.Tensor) -> torch.Tensor:
    """Return the bound on the error of the lse, float64 (heads, rows); 0 for a row that sees no key.

    ties: `score_ties(rows)`. Rules: `accuracy.lse-within-budget`, `accuracy.lse-16-bit`. Chapter "accuracy",
    equation (2).
    """
    a = rows.arithmetic
    work, stored, largest = score_errors(rows)
    of_cap = tanh_error(rows)
    growth = growth_of(CONFIDENCE * work + largest + of_cap)
    moved = rows.p * growth
    random = torch.sqrt(ties * ((moved * work) ** 2).sum(-1, keepdim=True))
    rounded = CONFIDENCE * torch.sqrt(ties * ((moved * stored) ** 2).sum(-1, keepdim=True))
    error = CONFIDENCE * random + torch.minimum(rounded, (moved * largest).sum(-1, keepdim=True))
    error = torch.minimum(error, (CONFIDENCE * work + largest).amax(-1, keepdim=True))  # a mean of shifts is no larger
    error += (moved * of_cap).sum(-1, keepdim=True)
    mean_s = (rows.p * rows.slope * rows.s).sum(-1, keepdim=True).abs()
    mean_z = (rows.p * rows.z).sum(-1, keepdim=True).abs()
    log_sum = (rows.lse - rows.top).abs()
    error += a.work * (2 * mean_s + 2 * mean_z + 2 * rows.top.abs() + 4 * rows.lse.abs() + 4 * (1 + log_sum))
    error += a.work * _roundings(rows, ties) + a.lse + a.flushed
    return torch.where(rows.count > 0, error, 0.0).squeeze(-1)


TANH_ROUNDOFFS = 16  # of c tanh(s / c), over c: two exponentials, sum, difference and quotient, argument and factor


def tanh_error(rows: Rows) -> torch.Tensor:
    """Return how far the cap itself moves a score, at the most: (heads, rows, k_len), or 0 without a cap.

    A tanh by exponentials loses digits near 0, so it is off by a part of the cap and not of the score; a fast one by a
    part of itself. Both are functions of the score and not random. Rule: `accuracy.softcap-16-bit`.
    """
    a = rows.arithmetic
    if not rows.softcap:
        return torch.zeros(()).double()
    return torch.where(rows.p > 0, a.tanh * rows.y.abs() + TANH_ROUNDOFFS * a.work * rows.softcap, 0.0)


def score_errors(rows: Rows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return how far rounding moves a score, each (heads, rows, k_len).

    work: from float32 (float64) arithmetic, in units of CONFIDENCE. stored, largest: from scores that pass through
    the storage dtype, in units of CONFIDENCE and at the most; both 0 in class fused.
    """
    a, d = rows.arithmetic, rows.head_dim
    s2, z2, norm2 = (rows.slope * rows.s) ** 2, rows.z**2, (rows.slope * rows.norm) ** 2
    shift2 = torch.where(rows.p > 0, rows.z - rows.top, 0.0) ** 2
    work = a.work * torch.sqrt((d / 3 + 1) * s2 + (d / 6 + 3) * norm2 + 2 * z2 + shift2)
    if a.scores == 0:
        return work, torch.zeros_like(work), torch.zeros_like(work)
    if rows.softcap:
        return work, *_capped_stores(rows, work)
    exact_scaling = rows.scale == 0 or abs(math.frexp(rows.scale)[0]) == 0.5  # a power of two rounds nothing
    of_s, of_norm, of_z = (1 if exact_scaling else 2), (0 if exact_scaling else 1), (1 if rows.biased else 0)
    stored = a.scores * torch.sqrt(of_s * s2 + of_norm * norm2 + of_z * z2)
    largest = a.scores * (of_s * rows.s.abs() + CONFIDENCE * of_norm * rows.norm + of_z * rows.z.abs())
    return work, stored, largest


def _capped_stores(rows: Rows, work: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `stored` and `largest` of `score_errors` where a score passes through the storage dtype before the cap
    too: scaled, over the cap, as a tanh, times the cap, and with the bias. A large error lowers tanh less than its
    slope says, or more: the slope is that of the nearest score that the error leaves possible."""
    u, c = rows.arithmetic.scores, rows.softcap
    before = u * (3 * rows.s.abs() + CONFIDENCE * rows.norm)  # of q k, of the scaled, of the divided score
    slope = 1 - torch.tanh((rows.s.abs() - before).clamp_min(0.0) / c) ** 2
    of_z = 1 if rows.biased else 0
    stored = u * torch.sqrt(slope**2 * (3 * rows.s**2 + rows.norm**2) + 2 * rows.y**2 + of_z * rows.z**2)
    return stored, slope * before + u * (2 * rows.y.abs() + of_z * rows.z.abs())


def growth_of(shift: torch.Tensor) -> torch.Tensor:
    """Return (exp(x) - 1) / x: a score that moves by up to x changes its weight by up to x times this."""
    x = shift.clamp(1e-9, LARGEST_SHIFT)
    return torch.expm1(x) / x


def _scores_term(rows: Rows, sd: torch.Tensor, ties: torch.Tensor) -> torch.Tensor:
    """Return the output error from wrong scores, (heads, rows, value_dim)."""
    work, stored, largest = score_errors(rows)
    of_cap = tanh_error(rows)
    shift = (CONFIDENCE * work + largest + of_cap).clamp_max(LARGEST_SHIFT)
    growth = growth_of(shift)
    error = CONFIDENCE * torch.sqrt(ties) * spread(rows, rows.p * growth * work)
    if rows.arithmetic.scores:
        random = CONFIDENCE * torch.sqrt(ties) * spread(rows, rows.p * growth * stored)
        worst = torch.sqrt((rows.p * (growth * largest) ** 2).sum(-1, keepdim=True)) * sd
        error = error + torch.minimum(random, worst)
    if rows.softcap:
        error = error + torch.sqrt((rows.p * (growth * of_cap) ** 2).sum(-1, keepdim=True)) * sd
    error = error / (rows.p * torch.exp(-shift)).sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return torch.minimum(error, 2 * rows.v.abs().amax(-2, keepdim=True))  # any weights give a mean of the values


def _temperature_term(rows: Rows) -> torch.Tensor:
    """Return the output error from a scale and a log2(e) rounded once for all keys, (heads, rows, value_dim)."""
    of_z = covariance(rows, rows.z).abs()
    of_s = covariance(rows, rows.slope * rows.s).abs() if rows.biased or rows.softcap else of_z
    return 2 * rows.arithmetic.work * (of_z + of_s)


def _stored_weights_term(rows: Rows, sd: torch.Tensor, ties: torch.Tensor) -> torch.Tensor:
    """Return the output error from weights that are rounded to the storage dtype once, (heads, rows, value_dim)."""
    a = rows.arithmetic
    if a.weights == 0:
        return torch.zeros_like(rows.o)
    rounding = (a.weights * rows.p).clamp_min(a.weights_step)
    rounding = torch.where(rows.p >= a.weights_lost, rounding, 0.0)
    safe = torch.where(rows.p > 0, rows.p, 1.0)
    worst = torch.sqrt((rounding**2 / safe).sum(-1, keepdim=True)) * sd
    random = CONFIDENCE * torch.sqrt(ties) * spread(rows, rounding)
    return rounding.sum(-1, keepdim=True) * rows.o.abs() + torch.minimum(random, worst)


def _vanished_term(rows: Rows) -> torch.Tensor:
    """Return the output error from weights so small that they may become 0, (heads, rows, value_dim)."""
    edge = rows.arithmetic.weights_lost
    lost = torch.where(rows.p < edge, rows.p, 0.0)
    return lost @ rows.v.abs() + lost.sum(-1, keepdim=True) * rows.o.abs() if lost.any() else torch.zeros_like(rows.o)


def _sums_term(rows: Rows, ties: torch.Tensor) -> torch.Tensor:
    """Return the output error from the sums P V and l, their merging and quotient, (heads, rows, value_dim)."""
    path, mass = partial_sums(rows)
    equal_terms = torch.minimum(ties, value_ties(rows))  # (heads, rows, value_dim)
    of_values = 2 * rows.count if rows.arithmetic.drifts else _roundings(rows, equal_terms)
    of_total = _roundings(rows, ties) + NORMALISE_ROUNDOFFS  # (heads, rows, 1)
    merging = rows.lse.abs() * (path + rows.o.abs())
    return rows.arithmetic.work * (of_values * path + mass + of_total * rows.o.abs() + merging)


def _roundings(rows: Rows, ties: torch.Tensor) -> torch.Tensor:
    """Return what the roundings of one sum over the keys amount to, in unit roundoffs of its largest partial sum.

    Two roundings a key: one addition, and at most one change of the running maximum. Those of equal terms are equal,
    so they drift: `ties` at a time.
    """
    steps = 2 * rows.count
    return torch.minimum(CONFIDENCE * torch.sqrt(steps * torch.minimum(ties, rows.count)), steps)
