"""Faults of the lse, and of merging parts by it."""

from mutants.house import Mutant

LSE, BASE, EMPTY, DTYPE = "softmax.lse", "softmax.lse-base", "softmax.lse-empty-row", "softmax.lse-dtype"
BUDGET, WEIGHTS, GAP = "accuracy.lse-within-budget", "softmax.weights", "flash.merge-gap"
MERGED, MERGED_EMPTY = "flash.merge-associative", "flash.merge-empty"
WRONG_BASE = "lse-or-split-merge/lse-wrong-base"
FINITE = "softmax-max-or-sentinel/masked-row-lse-finite"
PATHS = "lse-or-split-merge/lse-paths-disagree"
MERGE = "lse-or-split-merge/split-kv-merge"
OVERFLOW = "lse-or-split-merge/merge-exp-overflow"

LINE = "lse = (top + torch.log(total)).squeeze(-1)"  # of `plain`
BIASED = "scores = scores + attn_mask.to(wide)"
SHARES = "shares = torch.exp(lses - safe)"  # of `split_kv`
TOP = "top = lses.amax(0)\n"
ROWS = "    lse = (safe + torch.log(total)).squeeze(-1)"
RETURN = "return (output, lse) if return_lse else output"

MUTANTS = (
    Mutant("lse-base-2", "plain", LINE, f"{LINE} * 1.4426950408889634", WRONG_BASE, BASE, "lse-base-2"),
    Mutant("lse-maximum-e-sum-2", "plain", LINE, LINE.replace("log(", "log2("), WRONG_BASE, BASE),
    Mutant("lse-maximum-2-sum-e", "exp2", "(top + torch.log2(total) / LOG2_E)",
           "(top * LOG2_E + torch.log2(total) / LOG2_E)",
           WRONG_BASE, BASE),
    Mutant("lse-of-a-natural-declaration", "declared", "return (output, lse / math.log(2)) if return_lse else output",
           RETURN, WRONG_BASE, BASE,
           also=(("attention_eager, attention_base_two, attention_any_order, attention_narrow =",
                  "attention_eager, attention, attention_any_order, attention_narrow ="),)),
    Mutant("lse-without-maximum", "plain", LINE, "lse = torch.log(total).squeeze(-1)", PATHS, LSE,
           "lse-without-maximum"),
    Mutant("lse-is-the-maximum", "plain", LINE, LINE.replace("torch.log(total)", "torch.log((total > 0).to(wide))"),
           PATHS, LSE),
    Mutant("lse-is-the-sum", "plain", LINE, "lse = (torch.exp(top) * total).squeeze(-1)", PATHS, LSE),
    Mutant("lse-unscaled", "plain", LINE, f"{LINE}\n    lse = lse / scale if scale else lse", PATHS, LSE),
    Mutant("lse-counts-hidden-keys", "plain", "scores = scores.masked_fill(~visible, -torch.inf)",
           "all_keys = torch.logsumexp(scores, -1)\n    scores = scores.masked_fill(~visible, -torch.inf)", PATHS, LSE,
           also=((LINE, f"{LINE}\n    lse = all_keys.masked_fill(lse == -torch.inf, -torch.inf)"),)),
    Mutant("lse-less-the-mean-of-the-bias", "plain", BIASED,
           f"shift = attn_mask.to(wide).amax(-1, keepdim=True).clamp(min=-1e5)\n        {BIASED} - shift",
           "none public: a shift of the mask that cancels in the output", LSE),
    Mutant("lse-of-empty-row-plus-inf", "plain", LINE,
           f"{LINE}\n    lse = lse.masked_fill(lse == -torch.inf, torch.inf)",
           FINITE, EMPTY, "lse-of-empty-row"),
    Mutant("lse-of-empty-row-0", "plain", LINE, f"{LINE}\n    lse = lse.masked_fill(lse == -torch.inf, 0.0)",
           FINITE, EMPTY, "lse-of-empty-row"),
    Mutant("lse-of-empty-row-finite", "plain", LINE, f"{LINE}.clamp(min=-1e30)", FINITE, EMPTY, "lse-of-empty-row"),
    Mutant("lse-of-empty-row-nan", "plain", LINE, f"{LINE}\n    lse = lse.masked_fill(lse == -torch.inf, torch.nan)",
           "lse-or-split-merge/merge-both-empty-nan", EMPTY, "lse-of-empty-row"),
    Mutant("lse-of-an-unseen-tile-forgotten", "tiled", "(top + torch.log(total)).masked_fill(empty, -torch.inf)",
           "(safe + torch.log(total)).masked_fill(empty, torch.finfo(wide).min)", FINITE, EMPTY, "lse-of-empty-row"),
    Mutant("lse-in-the-query-dtype", "plain", LINE, f"{LINE}.to(query.dtype)", PATHS, DTYPE),
    Mutant("lse-in-float64", "plain", LINE, f"{LINE}.double()", PATHS, DTYPE),
    Mutant("lse-float32-for-float64", "plain", LINE, f"{LINE}.float()", PATHS, DTYPE),
    Mutant("lse-rounded-and-widened", "plain", LINE, f"{LINE}.to(query.dtype).to(wide)", PATHS, BUDGET),
    Mutant("lse-through-float32-for-float64", "plain", LINE, f"{LINE}.float().to(wide)", PATHS, BUDGET),
    Mutant("lse-of-rounded-weights", "tiled", "weights = torch.exp(scores - safe)",
           "weights = torch.exp(scores - safe).to(query.dtype).to(wide)",
           "none public: the sum taken after the weights were stored", BUDGET),
    Mutant("lse-rows-of-a-tile-reversed", "tiled", "lse[b, h, rows] =", "lse[b, h, rows.flip(0)] =", PATHS, LSE),
    Mutant("lse-of-head-0", "plain", LINE, f"{LINE}\n    lse = lse[:, :1].expand(query.shape[:3]).clone()", PATHS, LSE),
    Mutant("lse-without-bias", "plain", BIASED,
           f"unbiased = scores.masked_fill(attn_mask == -torch.inf, -torch.inf)\n        {BIASED}", PATHS, LSE,
           also=((LINE, f"{LINE}\n    if attn_mask is not None and attn_mask.dtype != torch.bool and not is_causal:\n"
                        "        lse = torch.logsumexp(unbiased, -1)"),)),
    Mutant("merge-without-maximum", "split_kv", SHARES, "shares = torch.exp(lses)", OVERFLOW, GAP,
           also=((ROWS, "    lse = torch.log(total).squeeze(-1)"),)),
    Mutant("merge-against-the-first-part", "split_kv", TOP, "top = lses[0]\n", OVERFLOW, GAP),
    Mutant("merge-of-empty-parts-unguarded", "split_kv", f"{TOP}    safe = top.masked_fill(top == -torch.inf, 0.0)",
           f"{TOP}    safe = top", "lse-or-split-merge/merge-both-empty-nan", MERGED_EMPTY),
    Mutant("merge-counts-empty-parts", "split_kv", "lses = torch.full((PARTS, batch, heads, q_len, 1), -torch.inf",
           "lses = torch.full((PARTS, batch, heads, q_len, 1), 0.0", MERGE, MERGED_EMPTY),
    Mutant("merge-reads-unwritten-parts", "split_kv", "outputs = torch.zeros(", "outputs = torch.empty(",
           "masked-value-leak/split-kv-merge-uninitialised", "contract.output-written"),
    Mutant("merge-by-plain-mean", "split_kv", SHARES, "shares = torch.exp(lses - lses)", MERGE, MERGED),
    Mutant("merge-in-base-2", "split_kv", SHARES, "shares = torch.exp2(lses - safe)", WRONG_BASE, WEIGHTS),
    Mutant("merge-by-sums-alone", "split_kv", "lses[part] = safe + torch.log(total)", "lses[part] = torch.log(total)",
           MERGE, WEIGHTS),
    Mutant("merge-lse-lost", "split_kv", ROWS,
           "    lse = safe.squeeze(-1).masked_fill(total.squeeze(-1) == 0, -torch.inf)",
           PATHS, LSE),
    Mutant("merge-too-few-keys-a-part", "split_kv", "size = -(-k_len // PARTS)", "size = max(k_len // PARTS, 1)",
           "tail-tile-or-block-multiple/tail-tile-not-masked", "attention.output", "tail-dropped"),
)  # fmt: skip
