"""Faults of multi-head modules."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

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

MUTANTS = (
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
