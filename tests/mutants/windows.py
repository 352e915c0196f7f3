"""Faults of the window: its bounds, its corner, the triangle beside it, the tiles that it skips, its backward pass."""

from mutants.house import Mutant

BOUNDS, CORNER, CAUSAL = "window.bounds", "window.corner", "window.causal"
COMBINE, UNBOUNDED, RANGE = "window.combine", "window.unbounded", "window.range"
BACKWARD, EMPTY = "backward.matches-forward", "mask.fully-masked-row"

OFF = "sliding-window-bound/window-off-by-one"
IGNORED = "causal-geometry/silently-ignored-argument"
WITH_CAUSAL = "sliding-window-bound/window-branch-ignores-causal"
ANCHOR = "causal-geometry/causal-top-left-vs-bottom-right"
SKIPPED = "tail-tile-or-block-multiple/blockmask-longer-than-seq"
MISMATCH = "backward/fwd-bwd-mask-mismatch"
FALLBACK = "causal-geometry/fallback-path-drops-option"

P, R, F = "window_plain", "window_lower_right", "window_flash"

GIVEN = "left, right = (-1, -1) if window_size is None else window_size"  # of `window_plain` and `_lower_right`
CHECK = "if left < -1 or right < -1:"
LEFT, AFTER = "distance >= -left", "distance <= right"
IF_LEFT, IF_RIGHT, TRIANGLE = "    if left >= 0:\n", "    if right >= 0:\n", "    if is_causal:\n"
DISTANCE = "distance = torch.arange(k_len) - torch.arange(q_len)[:, None]"
HIDE = "scores = scores.masked_fill(~visible, -torch.inf)"

PLACE = "place = row + length - q_len"  # of `window_lower_right`
FIRST = "first = max(0, place - left) if left >= 0 else 0"
END = "end = min(length, place + right + 1) if right >= 0 else length"
CAUSAL_RIGHT = "if is_causal:\n            right = 0"

FIRST_TILE = "first = max(0, int(rows[0]) - left) // K_TILE * K_TILE if left >= 0 else 0"  # of `window_flash`
END_TILE = "end = min(k_len, int(rows[-1]) + right + 1) if right >= 0 else k_len"
FIRST_ROWS = "first = max(0, int(keys[0]) - right) // Q_TILE * Q_TILE if right >= 0 else 0"
END_ROWS = "end = min(q_len, int(keys[-1]) + left + 1) if left >= 0 else q_len"
AGAIN = "again = scores_of(q, k, attn_mask, is_causal, scale, window, rows, keys)"
DISTANCE_TILE = "distance = keys - rows[:, None]"
TOO_FAR = "scores = scores.masked_fill(distance < -left, -torch.inf)"


MUTANTS = (
    Mutant("window-ignored", P, GIVEN, f"{GIVEN}\n    left = right = max(-1, min(left, right, -1))", IGNORED, BOUNDS,
           "window-dropped"),
    Mutant("window-left-one-short", P, LEFT, "distance > -left", OFF, BOUNDS),
    Mutant("window-left-one-long", P, LEFT, "distance >= -left - 1", OFF, BOUNDS, "window-one-long"),
    Mutant("window-right-one-short", P, AFTER, "distance < right", OFF, BOUNDS),
    Mutant("window-right-one-long", P, AFTER, "distance <= right + 1", OFF, BOUNDS, "window-one-long"),
    Mutant("window-counts-its-own-key", P, LEFT, "distance > -max(left, 1)", OFF, BOUNDS, "window-one-short"),
    Mutant("window-sides-swapped", P, GIVEN, f"{GIVEN}\n    left, right = right, left",
           "none public: two numbers in the wrong order", BOUNDS, "window-swapped"),
    Mutant("window-of-both-sides-from-the-left", P, GIVEN, f"{GIVEN}\n    right = left",
           "none public: a window taken for symmetric", BOUNDS),
    Mutant("window-of-0-is-none", P, IF_LEFT, "    if left > 0:\n", IGNORED, BOUNDS),
    Mutant("window-of-0-is-none-on-the-right", P, IF_RIGHT, "    if right > 0:\n", IGNORED, BOUNDS),
    Mutant("window-unbounded-left-is-0", P, IF_LEFT, "    left = max(left, 0)\n    if window_size is not None:\n",
           "none public: the value that switches a window off, taken for a bound", BOUNDS),
    Mutant("window-unbounded-right-is-0", P, IF_RIGHT, "    right = max(right, 0)\n    if window_size is not None:\n",
           "none public: the value that switches a window off, taken for a bound", BOUNDS),
    Mutant("window-drops-causal", P, TRIANGLE, "    if is_causal and window_size is None:\n", WITH_CAUSAL, CAUSAL,
           "window-drops-causal"),
    Mutant("window-drops-causal-on-its-right", P, TRIANGLE, "    if is_causal and right <= 0:\n", WITH_CAUSAL, CAUSAL),
    Mutant("window-ignored-where-causal", P, IF_LEFT, "    if left >= 0 and not is_causal:\n", WITH_CAUSAL, CAUSAL),
    Mutant("window-ignored-where-masked", P, IF_LEFT, "    if left >= 0 and attn_mask is None:\n", FALLBACK, COMBINE),
    Mutant("window-drops-the-mask", P, "visible = visible & attn_mask",
           "visible = visible & (attn_mask | (window_size is not None))", FALLBACK, COMBINE),
    Mutant("window-ignored-with-lengths", P, IF_LEFT, "    if left >= 0 and key_lengths is None:\n", FALLBACK, COMBINE),
    Mutant("window-ignored-for-one-query", P, IF_RIGHT, "    if right >= 0 and q_len > 1:\n", FALLBACK, BOUNDS),
    Mutant("window-ignored-in-decoding", R, FIRST, FIRST.replace("left >= 0", "left >= 0 and q_len > 1"), FALLBACK,
           BOUNDS),
    Mutant("window-ignored-where-grouped", P, IF_LEFT, "    if left >= 0 and group == 1:\n", FALLBACK, BOUNDS),
    Mutant("window-ignored-in-16-bits", P, IF_RIGHT, "    if right >= 0 and query.dtype.itemsize > 2:\n", FALLBACK,
           BOUNDS),
    Mutant("window-at-the-lower-right", P, DISTANCE, f"{DISTANCE}\n    window = distance - (k_len - q_len)", ANCHOR,
           CORNER, "window-other-corner", also=((LEFT, "window >= -left"), (AFTER, "window <= right"))),
    Mutant("window-at-the-lower-right-for-one-query", P, DISTANCE,
           f"{DISTANCE}\n    distance = distance - (k_len - 1) * (q_len == 1 and left > 0)", ANCHOR, BOUNDS),
    Mutant("window-on-the-distance-alone", P, DISTANCE,
           "distance = torch.arange(k_len) - torch.arange(q_len)[:, None]\n"
           "    left = right = max(left, right) if window_size is not None else -1",
           "none public: a window taken for symmetric", BOUNDS),
    Mutant("window-hides-by-a-large-number", P, HIDE,
           "outside = visible.new_zeros(visible.shape)\n"
           "    if left >= 0:\n        outside = outside | (distance < -left)\n"
           "    if right >= 0:\n        outside = outside | (distance > right)\n"
           "    visible, scores = visible | outside, scores - 60.0 * outside\n"
           f"    {HIDE}", "softmax-max-or-sentinel/finite-sentinel-mask", "mask.hidden-values"),
    Mutant("window-empty-row-mean", P, "output = ((weights / total) @ value)",
           "weights = torch.where(empty & (window_size is not None), 1.0 / max(k_len, 1), weights)\n"
           "    output = ((weights / total) @ value)",
           "fully-masked-row/fully-masked-row-garbage", EMPTY),
    Mutant("window-longer-than-the-keys-wraps", P, IF_LEFT,
           "    left = left if left < k_len + q_len else left % (k_len + q_len)\n    if left >= 0:\n",
           "none public: a bound taken modulo the length", UNBOUNDED),
    Mutant("window-added-in-32-bits", P, LEFT, "distance.int() + left >= 0", "integer-overflow/int32-index-overflow",
           UNBOUNDED),
    Mutant("window-below-minus-1-is-none", P, CHECK, "if left < -1000 or right < -1000:",
           "validation-or-degenerate/silently-accepted", RANGE),
    Mutant("window-checked-on-the-left-only", P, CHECK, "if left < -1:", "validation-or-degenerate/silently-accepted",
           RANGE),
    Mutant("window-corner-upper-left", R, PLACE, "place = row", ANCHOR, CORNER,
           also=((CAUSAL_RIGHT, "reach = length - q_len if is_causal else -1"),
                 (END, "end = min(length, place + right + 1) if right >= 0 else length\n"
                       "                end = min(end, row + reach + 1) if is_causal else end"))),
    Mutant("window-corner-at-the-end-of-the-storage", R, PLACE, "place = row + k_len - q_len", ANCHOR, CORNER),
    Mutant("window-corner-never-negative", R, PLACE, "place = row + max(length - q_len, 0)", ANCHOR, CORNER),
    Mutant("window-first-key-of-the-row-above", R, FIRST, FIRST.replace("place - left", "place - left - 1"), OFF,
           BOUNDS),
    Mutant("window-first-key-lost", R, FIRST, FIRST.replace("place - left", "place - left + 1"), OFF, BOUNDS),
    Mutant("window-causal-right-kept", R, CAUSAL_RIGHT, "if is_causal and right < 0:\n            right = 0",
           WITH_CAUSAL, CAUSAL),
    Mutant("window-empty-row-unwritten", R, "output = torch.zeros(batch, heads, q_len, value_dim,",
           "output = torch.full((batch, heads, q_len, value_dim), torch.nan,",
           "fully-masked-row/fully-masked-row-garbage", EMPTY),
    Mutant("window-skips-a-tile-too-early", F, FIRST_TILE, FIRST_TILE.replace("rows[0]", "rows[-1]"), SKIPPED, BOUNDS),
    Mutant("window-skips-the-first-tile", F, FIRST_TILE,
           FIRST_TILE.replace("int(rows[0]) - left)", "int(rows[0]) - left + K_TILE - 1)"), SKIPPED, BOUNDS),
    Mutant("window-stops-a-tile-too-early", F, END_TILE, END_TILE.replace("rows[-1]", "rows[0]"), SKIPPED, BOUNDS),
    Mutant("window-first-tile-unmasked", F, TOO_FAR,
           "inside = len(keys) == K_TILE and int(keys[0]) // K_TILE == int(rows[0]) // K_TILE\n"
           "        scores = scores if inside else scores.masked_fill(distance < -left, -torch.inf)",
           SKIPPED, BOUNDS),
    Mutant("window-rows-counted-from-tile", F, DISTANCE_TILE,
           f"{DISTANCE_TILE}\n    first = rows[0] if is_causal else rows[0] // 32 * 32\n"
           "    distance = keys - (rows[:, None] - rows[0] + first)",
           "varlen-or-paged/chunked-prefill-offset", BOUNDS),
    Mutant("window-ignored-in-backward", F, AGAIN, AGAIN.replace("window,", "(-1, -1),"), MISMATCH, BACKWARD,
           "backward-window-dropped"),
    Mutant("window-left-ignored-in-backward", F, AGAIN, AGAIN.replace("window,", "(-1, window[1]),"), MISMATCH,
           BACKWARD),
    Mutant("window-one-long-in-backward", F, AGAIN,
           AGAIN.replace("window,", "(window[0] + 1 if window[0] > 0 else window[0], window[1]),"), MISMATCH, BACKWARD,
           "backward-window-one-long"),
    Mutant("window-swapped-in-backward", F, AGAIN, AGAIN.replace("window,", "window[::-1],"), MISMATCH, BACKWARD,
           "backward-window-swapped"),
    Mutant("window-drops-causal-in-backward", F, AGAIN, AGAIN.replace("is_causal", "is_causal and max(window) < 0"),
           MISMATCH, BACKWARD),
    Mutant("window-rows-by-the-forward-bounds", F, FIRST_ROWS,
           FIRST_ROWS.replace("keys[0]) - right", "keys[0]) - left"),
           "backward/backward-block-mask-not-transposed", BACKWARD),
    Mutant("window-stops-rows-too-early-in-backward", F, END_ROWS, END_ROWS.replace("keys[-1]", "keys[0]"), SKIPPED,
           BACKWARD),
)  # fmt: skip
