"""Faults of multi-head modules."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

MASKED, SPLIT, JOIN, EMPTY = (
    "multi-head.mask-convention", "multi-head.split", "multi-head.concat-order", "multi-head.empty-row",
)  # fmt: skip
PROJECT, OUTWARD, LENGTHS = "multi-head.projections", "multi-head.output-projection", "multi-head.cross-lengths"
HEAD_MAP, ONE_HEAD = "grouped.head-map", "grouped.multi-query"
SCALE, BUDGET = "attention.scale-default", "accuracy.multi-head-within-budget"
SPLIT_LINE = "tokens.view(tokens.shape[0], tokens.shape[1], heads, dim).transpose(1, 2)"
JOIN_LINE = "heads.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)"
HIDE = "masked_fill(mask == 0, -torch.inf)"
GROUP = "self.num_heads // self.num_kv_heads"
EXPAND_LINE = f"heads.repeat_interleave({GROUP}, 1)"
KEY_LINE = "self.expand(self.split(self.w_k(k), self.num_kv_heads, self.d_k))"
VALUE_LINE = "self.expand(self.split(self.w_v(v), self.num_kv_heads, self.d_v))"
GUARD = "torch.softmax(scores, -1).masked_fill(empty, 0.0)"
WEIGHTS = "weights = torch.softmax(scores, -1)"

MUTANTS = (
    Mutant("heads-split-without-transposition", "forms/multi_head", SPLIT_LINE,
           "tokens.reshape(tokens.shape[0], heads, tokens.shape[1], dim)", KIND, SPLIT),
    Mutant("heads-split-with-a-stride", "forms/multi_head", SPLIT_LINE,
           "tokens.view(tokens.shape[0], tokens.shape[1], dim, heads).permute(0, 3, 1, 2)", KIND, SPLIT),
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
    Mutant("key-and-value-matrices-swapped", "forms/multi_head_sdpa",
           'heads(key, "w_k", groups), heads(value, "w_v", groups)',
           'heads(key, "w_v", groups), heads(value, "w_k", groups)', KIND, PROJECT),
    Mutant("value-dim-taken-from-the-keys", "forms/multi_head", f"value = {VALUE_LINE}",
           f"value = {VALUE_LINE.replace('self.d_v', 'self.d_k')}", KIND, SPLIT),
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
    Mutant("key-heads-repeated-as-a-whole", "forms/multi_head", EXPAND_LINE,
           f"heads.repeat(1, {GROUP}, 1, 1)", KIND, HEAD_MAP),
    Mutant("value-heads-repeated-as-a-whole", "forms/multi_head", f"value = {VALUE_LINE}",
           f"value = {VALUE_LINE.replace('self.expand(', '(')}.repeat(1, {GROUP}, 1, 1)", KIND, HEAD_MAP),
    Mutant("key-head-0-for-all", "forms/multi_head", EXPAND_LINE,
           "heads if self.num_kv_heads == self.num_heads else heads[:, :1].expand(-1, self.num_heads, -1, -1)",
           KIND, HEAD_MAP),
    Mutant("keys-projected-for-as-many-heads-as-queries", "forms/multi_head", KEY_LINE,
           f"self.split(self.w_k(k).repeat_interleave({GROUP}, 2), self.num_heads, self.d_k)", KIND, SPLIT),
    Mutant("values-projected-for-as-many-heads-as-queries", "forms/multi_head", VALUE_LINE,
           f"self.split(self.w_v(v).repeat_interleave({GROUP}, 2), self.num_heads, self.d_v)", KIND, SPLIT),
    Mutant("queries-of-a-group-averaged", "forms/multi_head_sdpa", 'heads(query, "w_q", num_heads)',
           'heads(query, "w_q", num_heads).unflatten(1, (groups, -1)).mean(2, True)'
           ".expand(-1, -1, num_heads // groups, -1, -1).flatten(1, 2)", KIND, ONE_HEAD),
    Mutant("mask-of-the-first-head-of-a-group", "forms/multi_head", HIDE,
           f"masked_fill((mask if mask.shape[1] == 1 else mask[:, :: {GROUP}].repeat_interleave({GROUP}, 1)) == 0, "
           "-torch.inf)", KIND, HEAD_MAP),
    Mutant("module-weights-in-bfloat16", "forms/multi_head", "heads = weights @ value",
           "heads = weights.bfloat16().to(value.dtype) @ value", KIND, BUDGET),
    Mutant("module-projections-in-bfloat16", "forms/multi_head", "self.w_q(q)", "self.w_q(q).bfloat16().to(q.dtype)",
           KIND, BUDGET),
    Mutant("module-returns-float32", "forms/multi_head", "return self.w_o(joined)", "return self.w_o(joined).float()",
           KIND, BUDGET),
)  # fmt: skip
