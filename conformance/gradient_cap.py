"""What rounding does to the gradients below a softcap: the terms of `gradient_errors`, times the slope of the cap."""

from __future__ import annotations

import torch

from attnspec.conformance.gradient_errors import EAGER_STORES, Terms
from attnspec.conformance.row_errors import score_errors, tanh_error
from attnspec.conformance.rows import Rows


def below_cap(rows: Rows, terms: Terms) -> Terms:
    """Return the terms of the gradients below the cap, dS_ij (1 - t_ij^2), t = tanh(s / c), from those above it.

    The factor is off by 2 t / c of what the capped score is off by, and by the roundings of 1 - t^2. Rule:
    `softcap.gradient`.
    """
    if not rows.softcap:
        return terms
    arithmetic, c = rows.arithmetic, rows.softcap
    t = rows.y / c
    work, stored, largest = score_errors(rows)
    steep = 2 * t.abs() / c
    ds, slope = terms.value, rows.slope
    fixed = steep * tanh_error(rows) + 2 * arithmetic.work
    u, rounding = arithmetic.weights, arithmetic.scores * ds.abs()  # of a slope that is stored
    stores = EAGER_STORES * (u * slope * ds) ** 2 if arithmetic.scores else torch.zeros_like(ds)
    return Terms(
        value=slope * ds,
        visible=terms.visible,
        work=slope**2 * terms.work + (ds * (steep * work + arithmetic.work)) ** 2,
        stored_square=slope**2 * terms.stored_square + (ds * steep * stored) ** 2 + rounding**2 + stores,
        stored_sum=slope * terms.stored_sum + ds.abs() * steep * largest + rounding + stores**0.5,
        lost=terms.lost,
        shared=slope * terms.shared + ds * fixed,
        of_lse=slope * terms.of_lse,
        row=slope * terms.row,
        row_fixed=slope * terms.row_fixed,
        of_z=slope * terms.of_z,
        of_s=slope * terms.of_s - 2 * t * slope * rows.s / c * ds,
    )
