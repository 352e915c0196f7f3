"""Which keys a causal query may see, for both corners in use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnspec.spec.errors import InputError

UPPER_LEFT = "upper_left"
LOWER_RIGHT = "lower_right"


def causal_visible(q_len: int, k_len: int, alignment: str) -> NDArray[np.bool_]:
    """Return the (q_len, k_len) bool array that is True where query i may see key j (rule `mask.causal-upper-left`,
    `mask.causal-lower-right`).

    upper_left: j <= i. lower_right: j <= i + k_len - q_len, so that the last query sees the last key.
    Raises InputError for another alignment.
    """
    corner_of = {UPPER_LEFT: 0, LOWER_RIGHT: k_len - q_len}
    if alignment not in corner_of:
        raise InputError(f"causal_alignment is {alignment!r}: use {UPPER_LEFT!r} or {LOWER_RIGHT!r}")
    rows, columns = np.arange(q_len)[:, None], np.arange(k_len)[None, :]
    visible: NDArray[np.bool_] = columns <= rows + corner_of[alignment]
    return visible
