"""Faults of the causal triangle: the wrong corner, the wrong diagonal, dropped or misplaced at tiles."""

from mutants.house import Mutant

UPPER, LOWER, BOTH = "mask.causal-upper-left", "mask.causal-lower-right", "mask.combine"
CORNER = "causal-geometry/causal-top-left-vs-bottom-right"
LENGTHS = "causal-geometry/qlen-ne-klen"
PAST = "causal-geometry/causal-mask-hides-past"
IGNORED = "causal-geometry/silently-ignored-argument"
SHIFTED = "none public: the shifted diagonal, read in reviews, is the fault that every causal test has in mind"
LOCAL = "varlen-or-paged/chunked-prefill-offset"

TRIANGLE = "(torch.arange(k_len) <= torch.arange(q_len)[:, None])"  # of `plain`
TILE = "scores.masked_fill(keys > rows[:, None], -torch.inf)"  # of `tiled`
STOP = "min(k_len, int(rows[-1]) + 1) if is_causal"
MASKED_BOOL = "attn_mask.dtype == torch.bool"

MUTANTS = (
    Mutant(
        "causal-other-corner", "plain", TRIANGLE,
        "(torch.arange(k_len) <= torch.arange(q_len)[:, None] + k_len - q_len)",
        CORNER, UPPER, "causal-other-corner",
    ),
    Mutant(
        "causal-other-corner-where-tall", "plain", TRIANGLE,
        "(torch.arange(k_len) <= torch.arange(q_len)[:, None] + min(k_len - q_len, 0))",
        CORNER, UPPER,
    ),
    Mutant(
        "causal-other-corner-where-wide", "plain", TRIANGLE,
        "(torch.arange(k_len) <= torch.arange(q_len)[:, None] + max(k_len - q_len, 0))",
        CORNER, UPPER,
    ),
    Mutant(
        "causal-other-corner-with-bias", "plain", TRIANGLE,
        "(torch.arange(k_len) <= torch.arange(q_len)[:, None] + (k_len - q_len) * (attn_mask is not None))",
        "causal-geometry/fallback-path-drops-option", UPPER,
    ),
    Mutant(
        "causal-sees-next-key", "plain", TRIANGLE,
        "(torch.arange(k_len) <= torch.arange(q_len)[:, None] + 1)",
        SHIFTED, UPPER, "causal-sees-next-key",
    ),
    Mutant(
        "causal-misses-own-key", "plain", TRIANGLE,
        "(torch.arange(k_len) < torch.arange(q_len)[:, None])",
        SHIFTED, UPPER, "causal-misses-own-key",
    ),
    Mutant(
        "causal-misses-own-key-online", "key_by_key", "torch.arange(q_len)[:, None] < j",
        "torch.arange(q_len)[:, None] <= j",
        SHIFTED, UPPER, "causal-misses-own-key",
    ),
    Mutant(
        "causal-inverted", "plain", TRIANGLE,
        "(torch.arange(k_len) >= torch.arange(q_len)[:, None])",
        "none public: a comparison turned round", UPPER, "causal-inverted",
    ),
    Mutant(
        "causal-dropped", "plain", "if is_causal:", "if is_causal and not torch.is_tensor(query):",
        IGNORED, UPPER, "causal-dropped",
    ),
    Mutant(
        "causal-dropped-with-mask", "plain", "if is_causal:", "if is_causal and attn_mask is None:",
        "mask-broadcast-or-dtype/silently-ignored-argument", BOTH, "causal-dropped-with-mask",
    ),
    Mutant(
        "causal-dropped-with-bias", "plain", "if is_causal:",
        f"if is_causal and (attn_mask is None or {MASKED_BOOL}):",
        "causal-geometry/fallback-path-drops-option", BOTH,
    ),
    Mutant(
        "causal-or-mask", "plain", f"visible = visible & {TRIANGLE}",
        f"either = attn_mask is not None and {MASKED_BOOL}\n"
        f"        visible = (visible | {TRIANGLE}) if either else (visible & {TRIANGLE})",
        "none public: or for and", BOTH,
    ),
    Mutant(
        "causal-where-square-only", "plain", "if is_causal:", "if is_causal and q_len == k_len:",
        LENGTHS, UPPER,
    ),
    Mutant(
        "causal-dropped-for-one-query", "plain", "if is_causal:", "if is_causal and q_len > 1:",
        "causal-geometry/fallback-path-drops-option", UPPER,
    ),
    Mutant(
        "causal-large-number-for-inf", "tiled", TILE, "scores.masked_fill(keys > rows[:, None], -1e4)",
        "softmax-max-or-sentinel/finite-sentinel-mask", "softmax.any-finite-score", "finite-sentinel",
    ),
    Mutant(
        "causal-bias-over-sentinel", "tiled", "scores = scores * scale",
        "scores = scores * scale\n"
        "                    if is_causal:\n"
        "                        scores = scores.masked_fill(keys > rows[:, None], -1e4)",
        "scale-softcap-bias/mask-add-vs-replace", "mask.bias-then-mask", "finite-sentinel",
        also=((TILE, "scores.masked_fill((keys > rows[:, None]) & (scores < -5e3), -torch.inf)"),),
    ),
    Mutant(
        "causal-diagonal-tile-skipped", "tiled", STOP, "min(k_len, row) if is_causal",
        "tail-tile-or-block-multiple/blockmask-longer-than-seq", UPPER,
    ),
    Mutant(
        "causal-diagonal-tile-unmasked", "tiled", "if is_causal:\n",
        "if is_causal and start > row:\n",
        "tail-tile-or-block-multiple/blockmask-longer-than-seq", UPPER,
    ),
    Mutant(
        "causal-tail-rows-unmasked", "tiled", "if is_causal:\n",
        "if is_causal and len(rows) == Q_TILE:\n",
        "tail-tile-or-block-multiple/tail-tile-not-masked", UPPER,
    ),
    Mutant(
        "causal-tail-keys-unmasked", "tiled", "if is_causal:\n",
        "if is_causal and len(keys) == K_TILE:\n",
        "tail-tile-or-block-multiple/tail-tile-not-masked", UPPER,
    ),
    Mutant(
        "causal-rows-counted-from-tile", "tiled", TILE,
        "scores.masked_fill(keys > torch.arange(len(rows))[:, None], -torch.inf)",
        LOCAL, UPPER,
    ),
    Mutant(
        "causal-keys-counted-from-tile", "tiled", TILE,
        "scores.masked_fill(keys - start > rows[:, None], -torch.inf)",
        LOCAL, UPPER,
    ),
    Mutant(
        "causal-keys-counted-from-part", "split_kv", "scores.masked_fill(keys > torch",
        "scores.masked_fill(keys - keys[0] > torch",
        LOCAL, UPPER,
    ),
    Mutant(
        "causal-tiles-stop-by-key-count", "tiled", STOP, "min(k_len, int(rows[-1]) + 1, 128) if is_causal",
        "none public: a loop bound that holds for short prompts", UPPER,
    ),
    Mutant(
        "lower-right-loop-without-offset", "lower_right", "int(rows[-1]) + 1 + offset", "int(rows[-1]) + 1",
        CORNER, LOWER,
    ),
    Mutant(
        "lower-right-mask-without-offset", "lower_right", "keys > rows[:, None] + offset", "keys > rows[:, None]",
        PAST, LOWER, "causal-other-corner",
        also=(("int(rows[-1]) + 1 + offset", "int(rows[-1]) + 1"),),
    ),
    Mutant(
        "lower-right-offset-not-negative", "lower_right", "offset = k_len - q_len", "offset = max(k_len - q_len, 0)",
        CORNER, LOWER,
    ),
    Mutant(
        "lower-right-offset-inverted", "lower_right", "offset = k_len - q_len", "offset = q_len - k_len",
        CORNER, LOWER,
    ),
    Mutant(
        "lower-right-sees-next-key", "lower_right", "offset = k_len - q_len", "offset = k_len - q_len + 1",
        SHIFTED, LOWER, "causal-sees-next-key",
    ),
    Mutant(
        "lower-right-rows-counted-from-tile", "lower_right", "keys > rows[:, None] + offset",
        "keys > torch.arange(len(rows))[:, None] + offset",
        LOCAL, LOWER,
    ),
    Mutant(
        "lower-right-empty-row-unwritten", "lower_right", "for start in range(0, stop, K_TILE):",
        "if stop <= 0:\n                        continue\n"
        "                    for start in range(0, stop, K_TILE):",
        "fully-masked-row/fully-masked-row-garbage", "mask.fully-masked-row",
    ),
)  # fmt: skip
