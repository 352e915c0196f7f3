"""What rounding does to the gradients below a softcap: the terms of `gradient_errors`, times the slope of the cap."""

from __future__ import annotations

import torch

from attnspec.conformance.gradient_errors import EAGER_STORES, Terms
from attnspec.conformance.row_errors import CONFIDENCE, score_errors, tanh_error
from attnspec.conformance.rows import Rows


def below_cap(rows: Rows, terms: Terms, step: float) -> Terms:
    """Return the terms of the gradients below the cap, dS_ij (1 - t_ij^2), t = tanh(s / c), from those above it.

    step: what storing a number near 0 rounds at the most. The factor is off by 2 t / c of what the capped score is off
    by, and by the roundings of 1 - t^2. Where a score lies far beyond the cap the factor is next to 0 and its own error
    larger: what is wrong with dS, which cancels, is taken times the largest factor that the error leaves possible. What
    is stored is the product, so that its store rounds by no less than `step`. Rule: `softcap.gradient`.
    """
    if not rows.softcap:
        return terms
    arithmetic, c = rows.arithmetic, rows.softcap
    t = rows.y / c
    work, stored, largest = score_errors(rows)
    steep = 2 * t.abs() / c
    ds, slope = terms.value, rows.slope
    fixed = steep * tanh_error(rows) + 2 * arithmetic.work
    reach = slope + steep * (CONFIDENCE * work + largest) + fixed
    of_work = reach**2 * terms.work + (ds * (steep * work + arithmetic.work)) ** 2
    row, row_fixed = reach * terms.row, reach * terms.row_fixed

    off = CONFIDENCE * (torch.sqrt(of_work) + row) + row_fixed + ds.abs() * (steep * largest + fixed)
    above, below, u = ds.abs(), (slope * ds).abs(), arithmetic.weights
    rounded = torch.where(below >= step, (u * below).clamp_min(step), off.clamp_max(step))
    counted = torch.where(above >= step, slope * (u * above).clamp_min(step), 0.0)  # in the terms above the cap
    stores = EAGER_STORES if arithmetic.scores else 1
    more = EAGER_STORES if arithmetic.scores else 0  # of the slope, and of its products
    of_slope = arithmetic.scores * above
    return Terms(
        value=slope * ds,
        visible=terms.visible,
        work=of_work,
        stored_square=reach**2 * terms.stored_square
        + (ds * steep * stored) ** 2
        + of_slope**2
        + stores * (rounded**2 - counted**2).clamp_min(0.0)
        + more * rounded**2,
        stored_sum=reach * terms.stored_sum
        + above * steep * largest
        + of_slope
        + stores * (rounded - counted).clamp_min(0.0)
        + more * rounded,
        lost=terms.lost + torch.where((below < step) & (above >= step), below, 0.0),
        shared=slope * terms.shared + ds * fixed,
        of_lse=slope * terms.of_lse,
        row=row,
        row_fixed=row_fixed,
        of_z=slope * terms.of_z,
        of_s=slope * terms.of_s - 2 * t * slope * rows.s / c * ds,
    )
