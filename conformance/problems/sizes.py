"""The lengths, corners, dtypes and mask shapes that sets of problems go through."""

from __future__ import annotations

RAGGED = ((1, 1), (1, 70), (5, 70), (33, 70), (70, 33), (64, 128), (129, 131), (17, 17))
CORNERS = ("upper_left", "lower_right")
BOOL_SHAPES = ("k", "qk", "1k", "q1", "hqk", "1qk", "bhqk", "b1qk", "1hqk", "11qk", "b11k", "bh1k", "1h1k", "bhq1")
DTYPES = ("float32", "bfloat16", "float16", "float64")
LARGEST_TILE = 128  # of keys or rows, that lengths go round twice
