"""Faults of `attn_mask`: meaning, broadcasting, empty rows, sentinels, and what hidden slots still do."""

from mutants.house import Mutant

BOOL, ADD, BROADCAST, BOTH = "mask.bool", "mask.additive", "mask.broadcast", "mask.combine"
EMPTY, FINITE, HIDDEN = "mask.fully-masked-row", "mask.finite-bias", "mask.hidden-values"
DROPPED = "mask-broadcast-or-dtype/silently-ignored-argument"
SHARED = "mask-broadcast-or-dtype/mask-broadcast-ignored"
SENTINEL = "softmax-max-or-sentinel/finite-sentinel-mask"
NAN_ROW = "fully-masked-row/fully-masked-row-nan"
TAIL = "tail-tile-or-block-multiple/tail-tile-not-masked"
BIAS = "scale-softcap-bias/mask-add-vs-replace"

KEEP = "visible = visible & attn_mask"  # of `plain`
BIASED = "scores = scores + attn_mask.to(wide)"
SPREAD = "attn_mask = attn_mask.expand(scores.shape)"
HIDE = "scores = scores.masked_fill(~visible, -torch.inf)"
GUARD = "    top = top.masked_fill(top == -torch.inf, 0.0)\n"
TILE = "tile_mask = attn_mask[b, h][rows][:, keys]"  # of `tiled`

MUTANTS = (
    Mutant("mask-dropped", "plain", KEEP, "visible = visible", DROPPED, BOOL, "mask-dropped"),
    Mutant("bias-and-its-hiding-dropped", "plain", BIASED, "scores = scores", DROPPED, ADD, "mask-dropped"),
    Mutant(
        "bias-dropped", "plain", BIASED, "scores = scores.masked_fill(attn_mask == -torch.inf, -torch.inf)",
        DROPPED, ADD, "mask-bias-dropped",
    ),
    Mutant(
        "bias-does-not-hide", "plain", BIASED, "scores = scores + attn_mask.to(wide).nan_to_num(neginf=0.0)",
        "softmax-max-or-sentinel/finite-sentinel-mask", ADD, "mask-bias-ignores-hiding",
    ),
    Mutant(
        "bias-twice", "plain", BIASED, "scores = scores + 2 * attn_mask.to(wide)",
        "none public: added by two layers of one project", ADD,
    ),
    Mutant(
        "bias-before-scale", "plain", BIASED, "scores = scores + attn_mask.to(wide) * scale",
        "scale-softcap-bias/softcap-order", ADD, "mask-bias-before-scale",
    ),
    Mutant(
        "bias-rounded-to-bfloat16", "plain", BIASED, "scores = scores + attn_mask.bfloat16().to(wide)",
        "precision-or-range/fastpath-bias-nan", "accuracy.output-within-budget",
    ),
    Mutant(
        "mask-inverted", "plain", KEEP, "visible = visible & ~attn_mask",
        "mask-broadcast-or-dtype/bool-mask-as-additive", BOOL, "mask-inverted",
    ),
    Mutant(
        "mask-added-as-number", "plain", KEEP, BIASED,
        "mask-broadcast-or-dtype/bool-mask-as-additive", BOOL, "mask-bool-added",
    ),
    Mutant(
        "mask-dropped-with-causal", "plain", "attn_mask.dtype == torch.bool:",
        "attn_mask.dtype == torch.bool and not is_causal:", DROPPED, BOTH, "mask-dropped-with-causal",
    ),
    Mutant(
        "bias-dropped-with-causal", "plain", "attn_mask.dtype != torch.bool:",
        "attn_mask.dtype != torch.bool and not is_causal:", DROPPED, BOTH, "mask-dropped-with-causal",
    ),
    Mutant("mask-of-batch-0", "plain", SPREAD, f"{SPREAD}[:1]", SHARED, BOOL, "mask-of-batch-0"),
    Mutant("mask-of-head-0", "plain", SPREAD, f"{SPREAD}[:, :1]", SHARED, BOOL, "mask-of-head-0"),
    Mutant("mask-of-row-0", "plain", SPREAD, f"{SPREAD}[:, :, :1]", SHARED, BOOL, "mask-of-row-0"),
    Mutant(
        "mask-of-three-dims-is-per-batch", "plain", SPREAD,
        "if attn_mask.ndim == 3 and attn_mask.shape[0] == query.shape[0]:\n"
        f"            attn_mask = attn_mask[:, None]\n        {SPREAD}", SHARED, BROADCAST,
    ),
    Mutant(
        "mask-of-two-dims-is-key-padding", "plain", SPREAD,
        "if attn_mask.ndim == 2 and attn_mask.shape[0] == query.shape[0]:\n"
        f"            attn_mask = attn_mask[:, None, None]\n        {SPREAD}", SHARED, BROADCAST,
    ),
    Mutant(
        "mask-of-one-column-covers-one-key", "plain", SPREAD,
        "if attn_mask.shape[-1] == 1 and attn_mask.dtype == torch.bool:\n"
        "            attn_mask = torch.nn.functional.pad(attn_mask, (0, k_len - 1), value=True)\n"
        f"        {SPREAD}", SHARED, BROADCAST,
    ),
    Mutant(
        "mask-too-short-is-padded", "plain", SPREAD,
        "if 1 < attn_mask.shape[-1] < k_len:\n"
        "            attn_mask = torch.nn.functional.pad(attn_mask, (0, k_len - attn_mask.shape[-1]))\n"
        f"        {SPREAD}", "tail-tile-or-block-multiple/mask-tail-out-of-bounds", BROADCAST,
    ),
    Mutant(
        "mask-too-long-is-cut", "plain", SPREAD,
        f"attn_mask = attn_mask[..., :k_len]\n        {SPREAD}",
        "tail-tile-or-block-multiple/blockmask-longer-than-seq", BROADCAST,
    ),
    Mutant(
        "mask-on-the-wrong-axis-where-square", "plain", SPREAD,
        f"{SPREAD}\n        attn_mask = attn_mask.transpose(-1, -2) if q_len == k_len else attn_mask",
        "strides-or-layout/mask-transposed", BOOL,
    ),
    Mutant(
        "mask-of-keys-hides-rows", "plain", SPREAD,
        "if attn_mask.ndim == 4 and attn_mask.shape[1:3] == (1, 1) and q_len <= k_len:\n"
        f"            attn_mask = attn_mask[..., :q_len].transpose(-1, -2)\n        {SPREAD}",
        "fully-masked-row/mask-on-wrong-axis", BROADCAST,
    ),
    Mutant(
        "padding-read-as-a-length", "plain", SPREAD,
        "if attn_mask.dtype == torch.bool and attn_mask.ndim == 4 and attn_mask.shape[1:3] == (1, 1):\n"
        f"            attn_mask = torch.arange(k_len) < attn_mask.sum(-1, keepdim=True)\n        {SPREAD}",
        "none public: lengths from the sum of a mask, in wrappers of varlen kernels", "mask.key-padding",
    ),
    Mutant(
        "empty-row-is-mean-of-all-values", "plain", HIDE,
        "scores = scores.masked_fill(~visible, torch.finfo(wide).min)", SENTINEL, EMPTY, "finite-sentinel",
    ),
    Mutant("sentinel-minus-1e9", "plain", HIDE, "scores = scores.masked_fill(~visible, -1e9)",
           SENTINEL, EMPTY, "finite-sentinel"),
    Mutant("sentinel-minus-1e4", "plain", HIDE, "scores = scores.masked_fill(~visible, -1e4)",
           SENTINEL, EMPTY, "finite-sentinel"),
    Mutant("sentinel-added", "plain", HIDE, "scores = scores - 1e4 * (~visible).to(wide)",
           BIAS, EMPTY, "finite-sentinel"),
    Mutant(
        "sentinel-but-empty-rows-right", "plain", HIDE,
        "empty = (scores.masked_fill(~visible, -torch.inf) == -torch.inf).all(-1, keepdim=True)\n"
        "    scores = scores.masked_fill(~visible, -1e4).masked_fill(empty, -torch.inf)",
        SENTINEL, "softmax.any-finite-score", "finite-sentinel",
    ),
    Mutant(
        "bias-clamped-to-minus-1e4", "plain", BIASED, "scores = scores + attn_mask.to(wide).clamp(min=-1e4)",
        BIAS, EMPTY,
    ),
    Mutant("empty-row-maximum-unguarded", "plain", GUARD, "", NAN_ROW, EMPTY),
    Mutant("empty-row-sum-unguarded", "plain", "total.masked_fill(total == 0, 1.0)", "total", NAN_ROW, EMPTY),
    Mutant(
        "empty-row-is-mean-of-v", "plain", "output = weights @ value.to(wide)",
        "output = weights @ value.to(wide)\n"
        "    output = torch.where(total == 0, value.to(wide).mean(-2, keepdim=True), output)",
        "fully-masked-row/paths-disagree-on-masked-row", EMPTY, "empty-row-mean-of-v",
    ),
    Mutant(
        "empty-row-is-first-value", "plain", "output = weights @ value.to(wide)",
        "output = weights @ value.to(wide)\n"
        "    output = torch.where(total == 0, value[..., :1, :].to(wide), output)",
        "fully-masked-row/fully-masked-row-garbage", EMPTY,
    ),
    Mutant(
        "empty-row-of-mask-and-triangle-only", "plain", "weights = weights / total.masked_fill(total == 0, 1.0)",
        "both = attn_mask is not None and is_causal\n"
        "    weights = weights / (total if both else total.masked_fill(total == 0, 1.0))", NAN_ROW, EMPTY,
    ),
    Mutant(
        "leading-empty-tile-poisons-the-row", "tiled", "safe = new_top.masked_fill(new_top == -torch.inf, 0.0)",
        "safe = new_top", "fully-masked-row/leading-block-masked", "contract.output-written",
    ),
    Mutant(
        "empty-tile-skipped-by-its-first-row", "tiled", "new_top = torch.maximum",
        "if scores[0].max() == -torch.inf:\n                        continue\n"
        "                    new_top = torch.maximum",
        "tail-tile-or-block-multiple/all-inf-mask-block", BOOL,
    ),
    Mutant("mask-skipped-at-tail-keys", "tiled", "if attn_mask is not None:\n                        tile_mask",
           "if attn_mask is not None and len(keys) == K_TILE:\n                        tile_mask", TAIL, BOOL),
    Mutant("mask-skipped-at-tail-rows", "tiled", "if attn_mask is not None:\n                        tile_mask",
           "if attn_mask is not None and len(rows) == Q_TILE:\n                        tile_mask", TAIL, BOOL),
    Mutant("mask-rows-counted-from-tile", "tiled", TILE, TILE.replace("[rows]", "[rows - row]"),
           "mask-broadcast-or-dtype/mask-broadcast-ignored", BOOL),
    Mutant("mask-keys-counted-from-tile", "tiled", TILE, TILE.replace("keys", "keys - start"),
           "mask-broadcast-or-dtype/mask-broadcast-ignored", BOOL),
    Mutant(
        "tail-unguarded-with-a-bias", "padded", "    scores = scores.masked_fill(keys >= k_len, -torch.inf)\n",
        "    if attn_mask is None:\n        scores = scores.masked_fill(keys >= k_len, -torch.inf)\n",
        "tail-tile-or-block-multiple/mask-tail-out-of-bounds", "softmax.weights",
    ),
    Mutant(
        "hidden-keys-in-the-maximum", "plain", HIDE, f"everything = scores\n    {HIDE}",
        "softmax-max-or-sentinel/fixed-max", HIDDEN,
        also=(("torch.cat([scores,", "torch.cat([everything,"),),
    ),
    Mutant(
        "hidden-weights-not-quite-zero", "plain", "weights = torch.exp(scores - top)",
        "weights = torch.exp(scores - top).clamp(min=1e-10)",
        "none public: a clamp against underflow", BOOL,
    ),
    Mutant(
        "hidden-weights-below-the-probe", "plain", "output = weights @ value.to(wide)",
        "output = weights @ value.to(wide) + 1e-9 * (~visible).to(wide) @ value.to(wide)",
        "none public: a leak that only a large hidden value shows", HIDDEN,
    ),
    Mutant(
        "low-bias-taken-for-a-mask", "plain", BIASED,
        "scores = scores + attn_mask.to(wide).masked_fill(attn_mask < -9999.0, -torch.inf)",
        "softmax-max-or-sentinel/finite-sentinel-max", FINITE,
    ),
    Mutant(
        "lowest-number-taken-for-a-mask", "plain", BIASED,
        "lowest = attn_mask == torch.finfo(attn_mask.dtype).min\n"
        "        scores = scores + attn_mask.to(wide).masked_fill(lowest, -torch.inf)",
        "precision-or-range/fastpath-bias-nan", FINITE,
    ),
    Mutant(
        "bias-row-all-low-is-empty", "plain", BIASED,
        "low = (attn_mask < -1e3).all(-1, keepdim=True)\n"
        "        scores = scores + attn_mask.to(wide).masked_fill(low, -torch.inf)",
        "softmax-max-or-sentinel/finite-sentinel-max", FINITE,
    ),
    Mutant(
        "hidden-nan-multiplied", "careful", "keys = visible[b, h, i].nonzero().flatten()",
        "seen = visible[b, h, i]\n            keys = torch.arange(k_len) if seen.any() else seen.nonzero().flatten()",
        "masked-value-leak/nan-in-masked-value", "mask.hidden-nan",
        also=(("+ bias[b, h, i, keys]", "+ bias[b, h, i, keys].masked_fill(~seen[keys], -torch.inf)"),),
    ),
    Mutant(
        "hidden-nan-key-multiplied", "careful", "weights = torch.exp(scores - scores.amax())",
        "weights = torch.exp(scores - scores.amax()) + 0 * key[b, h].sum()",
        "masked-value-leak/nan-in-masked-value", "mask.hidden-nan",
    ),
)  # fmt: skip
