"""What rounding does to the numbers a backward pass adds up: the weights and the gradients of the scores.

Shapes: (heads, rows, k_len) for a number a key, (heads, rows, 1) for a number a row, float64 throughout. Names are
those of the chapter "accuracy": p weights, a = dP = dO V^T, delta = sum_j p_j a_j, r = a - delta + grad_lse, dS = p r.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from attnspec.conformance.row_errors import (
    CONFIDENCE,
    LARGEST_SHIFT,
    NORMALISE_ROUNDOFFS,
    growth_of,
    score_errors,
    tanh_error,
)
from attnspec.conformance.rows import Arithmetic, Rows

EAGER_STORES = 3  # of dS in class eager: itself, times the scale, times a query or key that is scaled and stored
TINY_WEIGHT = 2.0**-500  # its square is 0 in float64, so that such a weight is its own bound


@dataclass(frozen=True)
class Terms:
    """The numbers A that a sum adds up, and what is wrong with each; (heads, rows, k_len).

    value: A. work: random errors, squared. stored_square, stored_sum: roundings to the storage dtype, the sum of their
    squares, and their sum at the most. lost: what may become 0 on the way. shared: A times a relative error that is a
    smooth function of the score. of_lse: A times the random error of the lse, common to a row; row, row_fixed: p times
    that of delta, random and not. What is random is in units of CONFIDENCE. of_z, of_s: derivatives of A by a factor
    on all scores, and on those before the bias.
    """

    value: torch.Tensor
    visible: torch.Tensor
    work: torch.Tensor
    stored_square: torch.Tensor
    stored_sum: torch.Tensor
    lost: torch.Tensor
    shared: torch.Tensor
    of_lse: torch.Tensor
    row: torch.Tensor
    row_fixed: torch.Tensor
    of_z: torch.Tensor
    of_s: torch.Tensor

    def of_head(self, head: int, keys: slice) -> Terms:
        """Return the terms of one head and some keys, (1, rows, keys)."""
        return Terms(*(getattr(self, f.name)[head : head + 1, :, keys] for f in fields(self)))


@dataclass(frozen=True)
class WeightErrors:
    """Relative errors of the weights as the backward pass computes them again.

    work, stored: random ones, in units of CONFIDENCE; largest: those of stored scores at the most; lse: that of the
    lse, in units of CONFIDENCE; shared: what else the lse and the exponential are off by; growth: exp of all of them
    at the most, or of `LARGEST_SHIFT`; lost: the largest weight that an error beyond that may make. Each is (heads,
    rows, k_len), but lse (heads, rows, 1).
    """

    work: torch.Tensor
    stored: torch.Tensor
    largest: torch.Tensor
    lse: torch.Tensor
    shared: torch.Tensor
    growth: torch.Tensor
    lost: torch.Tensor

    @classmethod
    def of(cls, rows: Rows, visible: torch.Tensor, ties: torch.Tensor) -> WeightErrors:
        """Return the errors of P = exp(S - lse). visible: (heads, rows, k_len) bool. ties: `score_ties(rows)`."""
        a = rows.arithmetic
        work, stored, largest = score_errors(rows)
        of_cap = tanh_error(rows)
        random, fixed = _lse_errors(rows, work, stored, largest, ties)
        from_lse = torch.where(rows.p > 0, rows.z - rows.lse, 0.0)
        shift = CONFIDENCE * (work + random) + largest + fixed + of_cap
        lost = torch.exp((rows.z - rows.lse + shift).clamp_max(0.0))
        first_order = growth_of(shift)
        return cls(
            work=first_order * torch.sqrt(work**2 + (a.work * from_lse) ** 2),
            stored=first_order * stored,
            largest=first_order * largest,
            lse=random * first_order.amax(-1, keepdim=True),
            shared=a.exponential + first_order * (fixed + of_cap),
            growth=torch.exp(shift.clamp_max(LARGEST_SHIFT)),
            lost=torch.where(visible & (shift > LARGEST_SHIFT), lost, 0.0),
        )


@dataclass(frozen=True)
class Backward:
    """What comes back to a block of rows, in units that keep squares finite.

    grad_output: (heads, rows, value_dim); grad_lse: (heads, rows, 1); value: (heads, k_len, value_dim). unit: what dS
    is divided by.
    """

    grad_output: torch.Tensor
    grad_lse: torch.Tensor
    value: torch.Tensor
    unit: float


def weight_terms(rows: Rows, errors: WeightErrors) -> Terms:
    """Return the terms p_ij of the sum dV_j = sum_i p_ij dO_i. Rule: `accuracy.weights-rounded-once`."""
    a, p = rows.arithmetic, rows.p
    rounded = rounded_weights(rows, errors)
    coarse = torch.where(a.weights * p < a.weights_step, rounded, 0.0)  # subnormal weights of all rows may be one
    nothing = torch.zeros_like(p)
    return Terms(
        value=p,
        visible=p > 0,
        work=p**2 * (errors.work**2 + a.work**2),
        stored_square=(p * errors.stored) ** 2 + (rounded - coarse) ** 2,
        stored_sum=p * errors.largest + rounded - coarse,
        lost=torch.where(p > 0, a.flushed, 0.0)
        + torch.where(p < max(a.weights_lost, TINY_WEIGHT), p, 0.0)
        + errors.lost,
        shared=p * errors.shared + coarse,
        of_lse=p * errors.lse,
        row=nothing,
        row_fixed=nothing,
        of_z=p * _centred(rows, rows.z),
        of_s=p * _centred(rows, rows.slope * rows.s),
    )


def score_terms(rows: Rows, errors: WeightErrors, ties: torch.Tensor, backward: Backward) -> Terms:
    """Return the terms dS_ij = p_ij (dP_ij - delta_i + grad_lse_i) of the sums dQ, dK and of the gradient of the bias.

    ties: `score_ties(rows)`. Source: Dao et al. 2022, appendix B.2 (the formulas); Dao 2023, section 3.1.
    """
    arithmetic, p = rows.arithmetic, rows.p
    u, w, dim = arithmetic.weights, arithmetic.work, backward.value.shape[-1]
    a = backward.grad_output @ backward.value.mT  # (heads, rows, k_len)
    delta = (p * a).sum(-1, keepdim=True)
    r = torch.where(p > 0, a - delta + backward.grad_lse, 0.0)
    ds = p * r
    norm2 = backward.grad_output**2 @ (backward.value**2).mT
    product = w**2 * ((dim / 3 + 1) * a**2 + (dim / 6 + 1) * norm2)
    differences = w**2 * (a**2 + delta**2 + backward.grad_lse**2 + 3 * r**2)
    row, row_fixed = delta_errors(rows, errors, ties, backward, a, norm2)

    work = (ds * errors.work) ** 2 + (p * errors.growth) ** 2 * (product + differences)
    off = CONFIDENCE * torch.sqrt(work) + p * errors.growth * (CONFIDENCE * row + row_fixed) + ds.abs() * errors.largest

    step = step_of(rows, backward)
    rounded = torch.where(ds.abs() >= step, (u * ds.abs()).clamp_min(step), off.clamp_max(step))
    largest = torch.where(p > 0, a.abs(), 0.0).amax(-1, keepdim=True)
    tiny = torch.where(p < TINY_WEIGHT, p, 0.0) + 2 * errors.lost
    lost = torch.where(ds.abs() < step, ds, 0.0).abs() + tiny * (2 * largest + backward.grad_lse.abs())
    lost += (p > 0) * arithmetic.flushed * (r.abs() + 1 / backward.unit)
    stored_square = (ds * errors.stored) ** 2 + rounded**2
    stored_sum = ds.abs() * errors.largest + rounded
    if u:  # autograd through a kernel that stores P stores dP
        of_product = p * errors.growth * (u * a.abs()).clamp_min(step)
        stored_square += of_product**2
        stored_sum += of_product
    if arithmetic.scores:
        of_weight = rounded_weights(rows, errors) * r.abs()
        stored_square += (EAGER_STORES - 1) * rounded**2 + of_weight**2
        stored_sum += (EAGER_STORES - 1) * rounded + of_weight
        for part in (p * (a - delta).abs(), p * backward.grad_lse.abs()):  # stored one by one, then added
            apart = torch.where(backward.grad_lse != 0, part, 0.0)
            store = torch.where(apart >= step, (u * apart).clamp_min(step), apart)
            stored_square += store**2
            stored_sum += store
        lost += torch.where(p < arithmetic.weights_lost, ds, 0.0).abs()
    return Terms(
        value=ds,
        visible=p > 0,
        work=work,
        stored_square=stored_square,
        stored_sum=stored_sum,
        lost=lost,
        shared=ds * errors.shared,
        of_lse=ds * errors.lse,
        row=p * errors.growth * row,
        row_fixed=p * errors.growth * row_fixed,
        of_z=_derivative(ds, p, a, _centred(rows, rows.z)),
        of_s=_derivative(ds, p, a, _centred(rows, rows.slope * rows.s)),
    )


def step_of(rows: Rows, backward: Backward) -> float:
    """Return what storing a dS near 0 rounds at the most, 0 where none is stored: it may be stored after it is
    scaled."""
    scaled = min(1.0, abs(rows.scale)) or 1.0
    return rows.arithmetic.weights_step / backward.unit / scaled if rows.arithmetic.weights else 0.0


def _lse_errors(
    rows: Rows, work: torch.Tensor, stored: torch.Tensor, largest: torch.Tensor, ties: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the error of the lse: what is random, in units of CONFIDENCE, and the rest; (heads, rows, 1).

    The terms are those of `lse_error`, which adds them up. Chapter "accuracy", equation (2).
    """
    a = rows.arithmetic
    moved = rows.p * growth_of(CONFIDENCE * work + largest + tanh_error(rows))
    scores = torch.sqrt(ties * (moved**2 * (work**2 + stored**2)).sum(-1, keepdim=True))
    scores = torch.minimum(scores, (CONFIDENCE * work + largest).amax(-1, keepdim=True) / CONFIDENCE)
    random = scores + a.work * roundings(rows.count, ties) / CONFIDENCE
    means = sum((rows.p * x).sum(-1, keepdim=True).abs() for x in (rows.slope * rows.s, rows.z))
    log_sum = (rows.lse - rows.top).abs()
    fixed = a.work * (2 * means + 2 * rows.top.abs() + 4 * rows.lse.abs() + 4 * (1 + log_sum)) + a.lse
    return random, fixed + (moved * tanh_error(rows)).sum(-1, keepdim=True)


def delta_errors(
    rows: Rows, errors: WeightErrors, ties: torch.Tensor, backward: Backward, a: torch.Tensor, norm2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the error of delta = rowsum(dO o O): what is random, in units of CONFIDENCE, and the rest; each (heads,
    rows, 1).

    It is the error of the output in the direction of dO, that of O's store, and that of the sum itself.
    """
    arithmetic, p = rows.arithmetic, rows.p
    w, dim = arithmetic.work, backward.value.shape[-1]
    delta = (p * a).sum(-1, keepdim=True)
    from_mean = torch.where(p > 0, a - delta, 0.0)
    rounded = rounded_weights(rows, errors)

    relative2 = errors.work**2 + errors.stored**2
    scores = torch.sqrt(ties * (p**2 * relative2 * from_mean**2).sum(-1, keepdim=True))
    largest = torch.where(p > 0, a.abs(), 0.0).amax(-1, keepdim=True)
    scores = torch.minimum(scores, 2 * largest / CONFIDENCE)  # any weights give a mean of dP
    weights = torch.sqrt(ties * (rounded**2 * from_mean**2).sum(-1, keepdim=True))
    weights = torch.minimum(weights, (rounded * from_mean.abs()).sum(-1, keepdim=True) / CONFIDENCE)
    output = (backward.grad_output * rows.unit * rows.o).abs()
    output2 = (output**2).sum(-1, keepdim=True)
    store = arithmetic.output * torch.minimum(torch.sqrt(output2), output.sum(-1, keepdim=True) / CONFIDENCE)
    random2 = weights**2 + store**2
    random2 += w**2 * (p**2 * ((dim / 3 + 1) * a**2 + (dim / 6 + 1) * norm2)).sum(-1, keepdim=True)
    random2 += ties * ((arithmetic.weights * p) ** 2 * a**2).sum(-1, keepdim=True)  # of dP, where it is stored
    if arithmetic.scores:
        random2 += ties * (rounded**2 * a**2).sum(-1, keepdim=True)
    random2 += w**2 * ((dim / 3 + 1) * delta**2 + (dim / 6 + 1) * output2)

    path = torch.sqrt(delta**2 + output2 + (p**2 * (a**2 + norm2)).sum(-1, keepdim=True))
    steps = roundings(rows.count, ties)
    of_cap = growth_of(CONFIDENCE * errors.work + errors.largest) * tanh_error(rows)
    spread = torch.sqrt((p * from_mean**2).sum(-1, keepdim=True))
    fixed = (arithmetic.exponential + torch.sqrt((p * of_cap**2).sum(-1, keepdim=True))) * spread
    fixed += rounded.sum(-1, keepdim=True) * delta.abs()
    fixed += torch.where(p < arithmetic.weights_lost, p * a.abs(), 0.0).sum(-1, keepdim=True)
    fixed += w * (steps + drift(rows.count, arithmetic)) * path
    fixed += w * ((steps + NORMALISE_ROUNDOFFS + 1) * delta.abs() + rows.lse.abs() * (path + delta.abs()))
    for x in (rows.z, rows.slope * rows.s):
        fixed += 2 * w * (p * x * from_mean).sum(-1, keepdim=True).abs()
    return scores + torch.sqrt(random2), fixed


def roundings(count: torch.Tensor, ties: torch.Tensor) -> torch.Tensor:
    """Return what the roundings of a sum of `count` terms amount to, in unit roundoffs of its partial sums.

    Two a term: an addition, and a change of scale. Those of equal terms are equal: `ties` at a time.
    """
    return torch.minimum(CONFIDENCE * torch.sqrt(2 * count * torch.minimum(ties, count)), 2 * count)


def drift(count: torch.Tensor, arithmetic: Arithmetic) -> torch.Tensor:
    """Return how far a sum of `count` products of 16-bit numbers may drift, in unit roundoffs of its partial sums.

    A matrix unit may truncate: one unit in the last place, which is 2 unit roundoffs, for every 4 products.
    """
    return count / 2 if arithmetic.drifts else torch.zeros_like(count)


def rounded_weights(rows: Rows, errors: WeightErrors) -> torch.Tensor:
    """Return by how much storing a weight may round it."""
    a = rows.arithmetic
    if not a.weights:
        return torch.zeros_like(rows.p)
    weight = (rows.p * errors.growth).clamp_max(1.0)
    return torch.where(weight >= a.weights_lost, (a.weights * weight).clamp_min(a.weights_step), 0.0)


def _centred(rows: Rows, x: torch.Tensor) -> torch.Tensor:
    """Return x less its mean under the weights, 0 where the weight is 0: the derivative of log p by a factor on x."""
    return torch.where(rows.p > 0, x - (rows.p * x).sum(-1, keepdim=True), 0.0)


def _derivative(ds: torch.Tensor, p: torch.Tensor, a: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """Return what dS changes by where log p changes by `change`: p itself, and delta."""
    return ds * change - p * (p * a * change).sum(-1, keepdim=True)
