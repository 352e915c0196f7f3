"""Options dropped on one path only: with grouped heads, one query, a long row, one dtype, the lse, ...

28 of 220 public faults are of this kind. `paths` has a kernel for each path; on `plain`, a condition is a path.
"""

from mutants.house import Mutant

UPPER, BOOL, ADD, BOTH = "mask.causal-upper-left", "mask.bool", "mask.additive", "mask.combine"
EXPLICIT, MAP, LSE = "attention.scale-explicit", "grouped.head-map", "softmax.lse"
FALLBACK = "causal-geometry/fallback-path-drops-option"
IGNORED = "scale-softcap-bias/silently-ignored-argument"
MASK = "mask-broadcast-or-dtype/silently-ignored-argument"
ROWS = "fully-masked-row/paths-disagree-on-masked-row"
LSES = "lse-or-split-merge/lse-paths-disagree"

CAUSAL = "if is_causal:"  # of `plain`
KEEP = "attn_mask.dtype == torch.bool:"
BIASED = "attn_mask.dtype != torch.bool:"
SCALE = "scale = head_dim**-0.5 if scale is None else scale"
DECODED = "output, lse = decode(query, key, value, attn_mask, is_causal, scale)"  # of `paths`
GROUPED = "output, lse = grouped(query, key, value, attn_mask, is_causal, scale)"
MASKED = "output, lse = masked(query, key, value, attn_mask, is_causal, scale)"


def only_if(name: str, condition: str, line: str, rule: str, kind: str, mistake: str | None = None) -> Mutant:
    """An `if` of `plain` that holds under one more condition."""
    return Mutant(name, "plain", line, f"{line[:-1]} and {condition}:", kind, rule, mistake)


def default_scale_if(name: str, condition: str) -> Mutant:
    """An explicit scale that is ignored under a condition."""
    return Mutant(
        name, "plain", SCALE, SCALE.replace("scale is None", f"scale is None or {condition}"), IGNORED, EXPLICIT
    )


MUTANTS = (
    Mutant("decode-drops-mask", "paths", DECODED, DECODED.replace("attn_mask", "None"), MASK, BOOL),
    Mutant("decode-drops-causal", "paths", DECODED, DECODED.replace("is_causal", "False"), FALLBACK, UPPER),
    Mutant("decode-drops-scale", "paths", DECODED, DECODED.replace("scale)", "query.shape[-1] ** -0.5)"), IGNORED,
           EXPLICIT),
    Mutant("decode-tiles-heads", "paths",
           "key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)",
           "key, value = key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)", "gqa-heads/gqa-head-order", MAP,
           "heads-tiled"),
    Mutant("decode-causal-ends-lower-right", "paths", "scores[..., 1:] = -torch.inf", "pass",
           "causal-geometry/causal-top-left-vs-bottom-right", UPPER),
    Mutant("grouped-drops-mask", "paths", GROUPED, GROUPED.replace("attn_mask", "None"), MASK, BOOL),
    Mutant("grouped-drops-causal", "paths", GROUPED, GROUPED.replace("is_causal", "False"), FALLBACK, UPPER),
    Mutant("grouped-drops-causal-with-mask", "paths", GROUPED, GROUPED.replace("is_causal",
           "is_causal and attn_mask is None"),
           FALLBACK, BOTH),
    Mutant("grouped-drops-scale", "paths", GROUPED, GROUPED.replace("scale)", "query.shape[-1] ** -0.5)"), IGNORED,
           EXPLICIT),
    Mutant("grouped-mask-of-the-first-head-of-a-group", "paths", "scores = scores.flatten(1, 2)",
           "scores, group = scores.flatten(1, 2), heads // kv_heads\n"
           "    if attn_mask is not None:\n"
           "        attn_mask = attn_mask.expand(scores.shape)[:, ::group].repeat_interleave(group, dim=1)",
           "gqa-heads/gqa-mask-oob", MAP),
    Mutant("grouped-lse-of-the-first-head-of-a-group", "paths", "return output.flatten(1, 2), lse.flatten(1, 2)",
           "return output.flatten(1, 2), lse[:, :, :1].expand(lse.shape).flatten(1, 2)", LSES, LSE),
    Mutant("masked-drops-causal", "paths", MASKED, MASKED.replace("is_causal", "False"), MASK, BOTH,
           "causal-dropped-with-mask"),
    Mutant("masked-drops-scale", "paths", MASKED, MASKED.replace("scale)", "query.shape[-1] ** -0.5)"), IGNORED,
           EXPLICIT),
    Mutant("masked-scales-twice", "paths", MASKED, MASKED.replace("scale)", "scale * scale)"),
           "scale-softcap-bias/scale-inverted", "attention.scale-default"),
    Mutant("masked-empty-row-is-a-mean", "paths", "scale\n    scores = apply(attn_mask, scores)\n",
           "scale\n    scores = apply(attn_mask, scores).clamp(min=-1e9)\n", ROWS, "mask.fully-masked-row"),
    only_if("causal-dropped-with-groups", "group == 1", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-with-groups-and-mask", "(group == 1 or attn_mask is None)", CAUSAL, BOTH, FALLBACK),
    only_if("causal-dropped-for-the-lse", "not return_lse", CAUSAL, LSE, FALLBACK),
    only_if("causal-dropped-in-bfloat16", "query.dtype != torch.bfloat16", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-in-float64", "query.dtype != torch.float64", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-beyond-128-keys", "k_len <= 128", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-beyond-512-keys", "k_len <= 512", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-for-ragged-head-dim", "head_dim % 8 == 0", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-beyond-head-dim-64", "head_dim <= 64", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-for-another-value-dim", "value.shape[-1] == head_dim", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-with-a-scale", "abs(scale * head_dim**0.5 - 1) < 1e-9", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-in-a-batch-of-4", "query.shape[0] < 4", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-for-broadcast-keys", "key.shape[0] == query.shape[0]", CAUSAL, UPPER, FALLBACK),
    only_if("causal-dropped-for-strided-queries", "query.is_contiguous()", CAUSAL, "contract.layouts", FALLBACK),
    only_if("mask-dropped-with-groups", "group == 1", KEEP, BOOL, MASK),
    only_if("mask-dropped-for-one-query", "q_len > 1", KEEP, BOOL, MASK),
    only_if("mask-dropped-for-the-lse", "not return_lse", KEEP, LSE, FALLBACK),
    only_if("mask-dropped-in-float16", "query.dtype != torch.float16", KEEP, BOOL, MASK),
    only_if("mask-dropped-beyond-128-keys", "k_len <= 128", KEEP, BOOL, MASK),
    only_if("mask-dropped-for-ragged-head-dim", "head_dim % 8 == 0", KEEP, BOOL, MASK),
    only_if("mask-dropped-with-a-scale", "abs(scale * head_dim**0.5 - 1) < 1e-9", KEEP, BOOL, MASK),
    only_if("mask-dropped-for-broadcast-keys", "key.shape[0] == query.shape[0]", KEEP, BOOL, MASK),
    only_if("mask-dropped-for-one-head", "query.shape[1] > 1", KEEP, BOOL, MASK),
    only_if("bias-dropped-with-groups", "group == 1", BIASED, ADD, MASK),
    only_if("bias-dropped-for-one-query", "q_len > 1", BIASED, ADD, MASK),
    only_if("bias-dropped-in-float64", "query.dtype != torch.float64", BIASED, ADD, MASK),
    only_if("bias-dropped-beyond-64-queries", "q_len <= 64", BIASED, ADD, MASK),
    only_if("bias-dropped-for-another-value-dim", "value.shape[-1] == head_dim", BIASED, ADD, MASK),
    only_if("bias-dropped-with-a-scale", "abs(scale * head_dim**0.5 - 1) < 1e-9", BIASED, ADD, MASK),
    default_scale_if("scale-ignored-with-groups", "query.shape[1] != key.shape[1]"),
    default_scale_if("scale-ignored-with-causal", "is_causal"),
    default_scale_if("scale-ignored-with-a-mask", "attn_mask is not None"),
    default_scale_if("scale-ignored-for-one-query", "q_len == 1"),
    default_scale_if("scale-ignored-in-bfloat16", "query.dtype == torch.bfloat16"),
    default_scale_if("scale-ignored-in-float64", "query.dtype == torch.float64"),
    default_scale_if("scale-ignored-for-another-value-dim", "value.shape[-1] != head_dim"),
    default_scale_if("scale-ignored-for-the-lse", "return_lse"),
    default_scale_if("scale-ignored-beyond-64-keys", "k_len > 64"),
)  # fmt: skip
