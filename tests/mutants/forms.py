"""Faults of what is no bare attention kernel, a table a form. Each is its base in `tests/honest/forms` with one planted
fault, and the vectors of the form, of a case that cites the rule, must find it."""

from mutants.house import Mutant

KIND = "none public: the survey has kernels alone"
MASKED, SPLIT, JOIN, EMPTY = (
    "multi-head.mask-convention", "multi-head.split", "multi-head.concat-order", "multi-head.empty-row",
)  # fmt: skip
PROJECT, OUTWARD, LENGTHS = "multi-head.projections", "multi-head.output-projection", "multi-head.cross-lengths"
SCALE, BUDGET = "attention.scale-default", "accuracy.multi-head-within-budget"
SPLIT_LINE = "tokens.view(tokens.shape[0], tokens.shape[1], self.num_heads, dim).transpose(1, 2)"
JOIN_LINE = "heads.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)"
HIDE = "masked_fill(mask == 0, -torch.inf)"
GUARD = "torch.softmax(scores, -1).masked_fill(empty, 0.0)"
WEIGHTS = "weights = torch.softmax(scores, -1)"

MULTI_HEAD = (
    Mutant("heads-split-without-transposition", "forms/multi_head", SPLIT_LINE,
           "tokens.reshape(tokens.shape[0], self.num_heads, tokens.shape[1], dim)", KIND, SPLIT),
    Mutant("heads-split-with-a-stride", "forms/multi_head", SPLIT_LINE,
           "tokens.view(tokens.shape[0], tokens.shape[1], dim, self.num_heads).permute(0, 3, 1, 2)", KIND, SPLIT),
    Mutant("heads-joined-without-transposition", "forms/multi_head", JOIN_LINE,
           "heads.reshape(q.shape[0], q.shape[1], -1)", KIND, JOIN),
    Mutant("heads-joined-backwards", "forms/multi_head", JOIN_LINE, JOIN_LINE.replace("heads.", "heads.flip(1)."),
           KIND, JOIN),
    Mutant("heads-joined-with-a-stride", "forms/multi_head", JOIN_LINE,
           "heads.permute(0, 2, 3, 1).reshape(q.shape[0], q.shape[1], -1)", KIND, JOIN),
    Mutant("output-projection-dropped", "forms/multi_head", "return self.w_o(joined)", "return joined", KIND, OUTWARD),
    Mutant("output-projection-transposed", "forms/multi_head", "return self.w_o(joined)",
           "return joined @ self.w_o.weight + (0 if self.w_o.bias is None else self.w_o.bias)", KIND, OUTWARD),
    Mutant("output-bias-dropped", "forms/multi_head", "return self.w_o(joined)", "return joined @ self.w_o.weight.T",
           KIND, OUTWARD),
    Mutant("output-bias-twice", "forms/multi_head", "return self.w_o(joined)",
           "return self.w_o(joined) + (0 if self.w_o.bias is None else self.w_o.bias)", KIND, OUTWARD),
    Mutant("output-bias-once-a-head", "forms/multi_head_sdpa", "parameters.get(\"w_o.bias\")",
           "None if parameters.get(\"w_o.bias\") is None else parameters[\"w_o.bias\"] * num_heads", KIND, OUTWARD),
    Mutant("query-bias-dropped", "forms/multi_head", "self.w_q(q)", "q @ self.w_q.weight.T", KIND, PROJECT),
    Mutant("value-bias-dropped", "forms/multi_head", "self.w_v(v)", "v @ self.w_v.weight.T", KIND, PROJECT),
    Mutant("all-biases-dropped", "forms/multi_head_sdpa", "parameters.get(f\"{layer}.bias\")", "None", KIND, PROJECT),
    Mutant("keys-from-the-queries", "forms/multi_head", "self.w_k(k)", "self.w_k(q)", KIND, PROJECT),
    Mutant("values-from-the-keys", "forms/multi_head", "self.w_v(v)", "self.w_v(k)", KIND, PROJECT),
    Mutant("key-and-value-matrices-swapped", "forms/multi_head_sdpa", 'heads(key, "w_k"), heads(value, "w_v")',
           'heads(key, "w_v"), heads(value, "w_k")', KIND, PROJECT),
    Mutant("value-dim-taken-from-the-keys", "forms/multi_head", "value = self.split(self.w_v(v), self.d_v)",
           "value = self.split(self.w_v(v), self.d_k)", KIND, SPLIT),
    Mutant("scale-by-d-model", "forms/multi_head", "math.sqrt(self.d_k)", "math.sqrt(self.d_model)", KIND, SCALE),
    Mutant("scale-by-d-v", "forms/multi_head", "math.sqrt(self.d_k)", "math.sqrt(self.d_v)", KIND, SCALE),
    Mutant("scale-left-out-of-a-module", "forms/multi_head", " / math.sqrt(self.d_k)", "", KIND, SCALE),
    Mutant("module-mask-inverted", "forms/multi_head", "mask == 0", "mask != 0", KIND, MASKED),
    Mutant("module-mask-added", "forms/multi_head", f"scores.{HIDE}", "scores + mask", KIND, MASKED),
    Mutant("module-mask-dropped", "forms/multi_head", "if mask is not None:", "if False:", KIND, MASKED),
    Mutant("module-mask-of-batch-0", "forms/multi_head", "mask == 0", "mask[:1] == 0", KIND, MASKED),
    Mutant("module-mask-of-the-first-row", "forms/multi_head", "mask == 0", "mask[:, :, :1] == 0", KIND, MASKED),
    Mutant("module-mask-multiplies-weights", "forms/multi_head", "heads = weights @ value",
           "heads = (weights if mask is None else weights * (mask != 0)) @ value", KIND, MASKED,
           also=((f"scores = scores.{HIDE}", "scores = scores * 1.0"),)),
    Mutant("empty-row-of-a-module-is-the-mean", "forms/multi_head", HIDE, "masked_fill(mask == 0, -1e4)", KIND, EMPTY),
    Mutant("empty-row-of-a-module-is-nan", "forms/multi_head", GUARD, "torch.softmax(scores, -1)", KIND, EMPTY),
    Mutant("empty-row-of-a-module-loses-the-bias", "forms/multi_head", "return self.w_o(joined)",
           "return self.w_o(joined).masked_fill(empty.all(1), 0.0)", KIND, EMPTY),
    Mutant("module-reads-as-many-keys-as-queries", "forms/multi_head", HIDE, HIDE, KIND, LENGTHS,
           also=((WEIGHTS, "scores = scores.masked_fill(torch.arange(k.shape[1]) >= q.shape[1], -torch.inf)\n        "
                  + WEIGHTS),)),
    Mutant("module-softmax-over-queries", "forms/multi_head", "torch.softmax(scores, -1)", "torch.softmax(scores, -2)",
           KIND, "multi-head.cross-lengths"),
    Mutant("module-weights-in-bfloat16", "forms/multi_head", "heads = weights @ value",
           "heads = weights.bfloat16().to(value.dtype) @ value", KIND, BUDGET),
    Mutant("module-projections-in-bfloat16", "forms/multi_head", "self.w_q(q)", "self.w_q(q).bfloat16().to(q.dtype)",
           KIND, BUDGET),
    Mutant("module-returns-float32", "forms/multi_head", "return self.w_o(joined)", "return self.w_o(joined).float()",
           KIND, BUDGET),
)  # fmt: skip

ASSOCIATIVE, PARTS, GAP, MERGED = (
    "flash.merge-associative", "flash.merge-empty", "flash.merge-gap", "accuracy.merge-within-budget",
)  # fmt: skip
FINITE = "    top = torch.where(top == -torch.inf, 0.0, top)\n"
SHARES = "shares = torch.exp(lses - top)"

MERGE = (
    Mutant("naive-merge-without-a-maximum", "forms/merge_at_once", "lses.amax(0)", "torch.zeros_like(lses[0])",
           KIND, GAP),
    Mutant("naive-merge-against-the-first-part", "forms/merge_at_once", "lses.amax(0)", "lses[0]", KIND, GAP),
    Mutant("merge-by-exp-of-the-lse", "forms/merge_pairwise", "torch.exp(lse - reach)",
           "(torch.exp(lse) / torch.exp(reach))", KIND, GAP),
    Mutant("merge-lse-by-log-of-exp", "forms/merge_pairwise", "torch.logaddexp(lse, part_lse)",
           "torch.log(torch.exp(lse) + torch.exp(part_lse))", KIND, GAP),
    Mutant("merge-clamps-distances", "forms/merge_at_once", SHARES, "shares = torch.exp((lses - top).clamp(min=-10))",
           KIND, GAP),
    Mutant("merge-forgets-the-lse", "forms/merge_at_once", SHARES,
           "shares = (lses > -torch.inf).to(lses.dtype) + 0 * top", KIND, ASSOCIATIVE),
    Mutant("merge-shares-swapped", "forms/merge_pairwise", "torch.exp(part_lse - reach)[..., None] * part",
           "torch.exp(lse - reach)[..., None] * part", KIND, ASSOCIATIVE,
           also=(("torch.exp(lse - reach)[..., None] * output", "torch.exp(part_lse - reach)[..., None] * output"),)),
    Mutant("merge-drops-the-last-part", "forms/merge_at_once", "(shares[..., None] * seen).sum(0)",
           "(shares[..., None] * seen)[: max(len(seen) - 1, 1)].sum(0)", KIND, ASSOCIATIVE),
    Mutant("merge-not-divided", "forms/merge_at_once", "mixed / torch.where(total == 0, 1.0, total)[..., None]",
           "mixed", KIND, ASSOCIATIVE),
    Mutant("merged-lse-is-the-maximum", "forms/merge_at_once", "lse = top + torch.log(total)",
           "lse = torch.where(total == 0, -torch.inf, top)", KIND, ASSOCIATIVE),
    Mutant("merged-lse-in-base-2", "forms/merge_at_once", "torch.log(total)", "torch.log2(total)", KIND, ASSOCIATIVE),
    Mutant("merged-lse-adds-the-count", "forms/merge_at_once", "torch.log(total)",
           "torch.log(total + len(lses) * (total > 0))", KIND, ASSOCIATIVE),
    Mutant("merge-nan-at-two-minus-inf", "forms/merge_at_once", FINITE, "", KIND, PARTS),
    Mutant("merge-nan-at-two-minus-inf-in-a-chain", "forms/merge_pairwise",
           "torch.where(both == -torch.inf, 0.0, both)", "both", KIND, PARTS),
    Mutant("merge-of-nothing-divides-by-0", "forms/merge_at_once", "torch.where(total == 0, 1.0, total)", "total",
           KIND, PARTS),
    Mutant("merge-of-nothing-has-lse-0", "forms/merge_at_once", "torch.log(total)",
           "torch.log(torch.where(total == 0, 1.0, total))", KIND, PARTS),
    Mutant("merge-counts-empty-parts-as-0", "forms/merge_at_once", "lses - top",
           "lses.nan_to_num(neginf=0.0) - top", KIND, PARTS),
    Mutant("merge-of-nothing-gives-what-lies-there", "forms/merge_at_once",
           ".masked_fill((lses == -torch.inf)[..., None], 0.0)", "", KIND, PARTS,
           also=(("    output = mixed / torch.where(total == 0, 1.0, total)[..., None]",
                  "    output = torch.where((total == 0)[..., None], seen[0], mixed / total[..., None])"),)),
    Mutant("merge-shares-in-bfloat16", "forms/merge_at_once", SHARES, f"{SHARES}.bfloat16().to(lses.dtype)", KIND,
           MERGED),
    Mutant("merge-in-the-storage-dtype", "forms/merge_pairwise", "zip(outputs.to(lses.dtype), lses",
           "zip(outputs, lses", KIND, MERGED,
           also=(("[..., None] * part\n", "[..., None] * part\n        output = output.to(part.dtype)\n"),
                 ("dtype=lses.dtype), torch", "dtype=outputs.dtype), torch"))),
    Mutant("merged-lse-in-the-storage-dtype", "forms/merge_at_once", ", lse\n",
           ", lse.to(outputs.dtype).to(lses.dtype)\n", KIND, MERGED),
)  # fmt: skip

SCORE, SOFTMAX, MASK, ADDED = (
    "additive.score", "additive.softmax", "additive.mask", "accuracy.additive-within-budget",
)  # fmt: skip
TANH = "torch.tanh(from_query + from_key) @ v_a"
BOTH = "weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)"

ADDITIVE = (
    Mutant("additive-without-tanh", "forms/additive", TANH, "(from_query + from_key) @ v_a", KIND, SCORE),
    Mutant("additive-with-the-dot-product", "forms/additive", TANH, "(from_query * from_key).sum(-1)", KIND, SCORE),
    Mutant("additive-tanh-of-the-product", "forms/additive", TANH, "torch.tanh(from_query * from_key) @ v_a",
           KIND, SCORE),
    Mutant("additive-tanh-of-each-alone", "forms/additive", TANH,
           "(torch.tanh(from_query) + torch.tanh(from_key)) @ v_a", KIND, SCORE),
    Mutant("additive-tanh-outside", "forms/additive", TANH, "torch.tanh((from_query + from_key) @ v_a)", KIND, SCORE),
    Mutant("additive-sigmoid-for-tanh", "forms/additive", "torch.tanh", "torch.sigmoid", KIND, SCORE),
    Mutant("additive-sum-for-v-a", "forms/additive", TANH, "torch.tanh(from_query + from_key).sum(-1)", KIND, SCORE),
    Mutant("additive-scaled", "forms/additive", TANH, f"{TANH} / len(v_a) ** 0.5", KIND, SCORE),
    Mutant("additive-keys-left-out", "forms/additive", "from_query + from_key", "from_query + 0 * from_key",
           KIND, SCORE),
    Mutant("additive-difference-for-sum", "forms/additive", "from_query + from_key", "from_query - from_key",
           KIND, SCORE),
    Mutant("additive-values-squashed", "forms/additive", "weights @ value", "weights @ torch.tanh(value)",
           KIND, SOFTMAX),
    Mutant("additive-softmax-over-queries", "forms/additive", BOTH, BOTH.replace("-1)", "-2)"), KIND, SOFTMAX),
    Mutant("additive-not-normalised", "forms/additive", "torch.softmax(scores, -1)", "torch.exp(scores)",
           KIND, SOFTMAX),
    Mutant("additive-weights-are-scores", "forms/additive", "weights.to(dtype), lse", "scores.exp().to(dtype), lse",
           KIND, SOFTMAX),
    Mutant("additive-mask-inverted", "forms/additive", "visible & attn_mask", "visible & ~attn_mask", KIND, MASK),
    Mutant("additive-mask-dropped", "forms/additive", "if attn_mask is not None:", "if False:", KIND, MASK),
    Mutant("additive-mask-of-batch-0", "forms/additive", "visible & attn_mask", "visible & attn_mask[:1]", KIND, MASK),
    Mutant("additive-mask-drops-the-triangle", "forms/additive", "if is_causal:", "if is_causal and attn_mask is None:",
           KIND, MASK),
    Mutant("additive-sees-the-next-key", "forms/additive", ".tril()", ".tril(1)", KIND, MASK),
    Mutant("additive-empty-row-is-nan", "forms/additive", BOTH, "weights = torch.softmax(scores, -1)", KIND, MASK),
    Mutant("additive-empty-row-is-the-mean", "forms/additive", "masked_fill(~visible, -torch.inf)",
           "masked_fill(~visible, -1e4)", KIND, MASK, also=((BOTH, "weights = torch.softmax(scores, -1)"),)),
    Mutant("additive-arguments-in-bfloat16", "forms/additive", TANH,
           "torch.tanh((from_query + from_key).bfloat16().to(wide)) @ v_a", KIND, ADDED),
    Mutant("additive-weights-in-bfloat16", "forms/additive", "weights @ value", "weights.bfloat16().to(wide) @ value",
           KIND, ADDED),
)  # fmt: skip

INVERTED, ON_WEIGHTS, ONE, LSE, BACK = (
    "dropout.inverted", "dropout.on-weights", "dropout.one", "dropout.lse", "dropout.backward-mask",
)  # fmt: skip
DROPPED = "dropped = torch.where(keep, weights * factor, 0.0)"
FACTOR = "1 / (1 - dropout_p) if dropout_p < 1 else 0.0"
EMPTIES = "    empty = (scores == -torch.inf).all(-1, keepdim=True)\n"
LSE_LINE = "lse = torch.logsumexp(scores.masked_fill(empty, 0.0), -1)"

DROPOUT = (
    Mutant("given-dropout-not-scaled-up", "forms/dropout", FACTOR, "1.0", KIND, INVERTED),
    Mutant("given-dropout-divided-by-p", "forms/dropout", FACTOR, "1 / dropout_p", KIND, INVERTED),
    Mutant("given-dropout-scaled-twice", "forms/dropout", FACTOR, "(1 - dropout_p) ** -2 if dropout_p < 1 else 0.0",
           KIND, INVERTED),
    Mutant("given-dropout-renormalised", "forms/dropout", DROPPED,
           f"{DROPPED}\n    dropped = dropped / dropped.sum(-1, keepdim=True).clamp(min=1e-30)", KIND, INVERTED),
    Mutant("given-dropout-keeps-what-it-drops", "forms/dropout", "torch.where(keep,", "torch.where(~keep,", KIND,
           INVERTED),
    Mutant("given-dropout-mask-of-head-0", "forms/dropout", "torch.where(keep,", "torch.where(keep[:, :1],", KIND,
           ON_WEIGHTS),
    Mutant("given-dropout-hides-scores", "forms/dropout", EMPTIES,
           f"    scores = scores.masked_fill(~keep, -torch.inf)\n{EMPTIES}", KIND, ON_WEIGHTS,
           also=((DROPPED, "dropped = weights * factor"),)),
    Mutant("given-dropout-on-scores", "forms/dropout", EMPTIES,
           f"    scores = torch.where(keep | (scores == -torch.inf), scores, 0.0)\n{EMPTIES}", KIND, ON_WEIGHTS,
           also=((DROPPED, "dropped = weights * 1.0"),)),
    Mutant("given-dropout-ignored", "forms/dropout", DROPPED, "dropped = weights * 1.0", KIND, ON_WEIGHTS),
    Mutant("given-dropout-on-the-output", "forms/dropout", "output = dropped @ value",
           "output = weights @ value * torch.where(keep[..., :1], factor, 0.0)", KIND, ON_WEIGHTS),
    Mutant("given-dropout-of-1-is-nan", "forms/dropout", FACTOR, "1 / torch.tensor(1 - dropout_p)", KIND, ONE,
           also=((DROPPED, "dropped = weights * factor * keep"),)),
    Mutant("given-dropout-of-1-is-none", "forms/dropout", DROPPED, f"{DROPPED} if dropout_p < 1 else weights", KIND,
           ONE),
    Mutant("given-dropout-in-the-lse", "forms/dropout", LSE_LINE,
           LSE_LINE.replace("scores.masked_fill(empty, 0.0)", "scores.masked_fill(empty, 0.0).where(keep, -1e30)"),
           KIND, LSE),
    Mutant("given-dropout-factor-in-the-lse", "forms/dropout", LSE_LINE,
           f"{LSE_LINE} - torch.log(torch.tensor(max(1 - dropout_p, 0.01), dtype=wide))", KIND, LSE),
    Mutant("given-dropout-not-in-the-backward", "forms/dropout", DROPPED,
           f"{DROPPED}\n    dropped = weights + (dropped - weights).detach()", KIND, BACK),
    Mutant("given-dropout-no-factor-in-the-backward", "forms/dropout", DROPPED,
           f"{DROPPED}\n    dropped = weights * keep + (dropped - weights * keep).detach()", KIND, BACK),
    Mutant("given-dropout-no-gradient-of-weights", "forms/dropout", DROPPED, f"{DROPPED}.detach()", KIND,
           "backward.dropout"),
)  # fmt: skip

FORM_FAMILIES = {"multi_head": MULTI_HEAD, "merge": MERGE, "additive": ADDITIVE, "dropout": DROPOUT}


def form_mutants() -> tuple[Mutant, ...]:
    """Return every mutant of every form."""
    return tuple(mutant for table in FORM_FAMILIES.values() for mutant in table)
