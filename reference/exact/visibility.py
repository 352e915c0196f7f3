"""Which keys a query may see for its place on the diagonal: causal triangle and window, for both corners in use."""

from __future__ import annotations

import operator

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
    rows, columns = np.arange(q_len)[:, None], np.arange(k_len)[None, :]
    visible: NDArray[np.bool_] = columns <= rows + _corner(q_len, k_len, alignment)
    return visible


def window_visible(q_len: int, k_len: int, window_size: tuple[int, int], alignment: str) -> NDArray[np.bool_]:
    """Return the (q_len, k_len) bool array that is True where key j lies in the window of query i (rules
    `window.bounds`, `window.corner`).

    window_size: (left, right); with c = 0 for upper_left and k_len - q_len for lower_right, i + c - left <= j <= i + c
    + right, and -1 leaves that side open. Raises InputError for another alignment, and for sides that are no whole
    numbers of at least -1.
    """
    left, right = checked_window(window_size)
    visible = np.zeros((q_len, k_len), dtype=np.bool_)
    for i in range(q_len):
        place = i + _corner(q_len, k_len, alignment)
        first = 0 if left == -1 else max(place - left, 0)
        end = k_len if right == -1 else max(place + right + 1, 0)
        visible[i, first:end] = True
    return visible


def checked_window(window_size: tuple[int, int]) -> tuple[int, int]:
    """Return (left, right). Raises InputError (rule `window.range`)."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        left = right = -2
    if min(left, right) < -1:
        raise InputError(f"window_size is {window_size!r}: use (left, right), 0 or more, -1 for an open side")
    return left, right


def _corner(q_len: int, k_len: int, alignment: str) -> int:
    """Return the key at which the diagonal meets row 0. Raises InputError."""
    corner_of = {UPPER_LEFT: 0, LOWER_RIGHT: k_len - q_len}
    if alignment not in corner_of:
        raise InputError(f"causal_alignment is {alignment!r}: use {UPPER_LEFT!r} or {LOWER_RIGHT!r}")
    return corner_of[alignment]
