"""Faults of ALiBi: of its slopes and of its bias."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

SLOPES, BIAS, FORM, OFFSET, SHAPE = "alibi.slopes", "alibi.bias", "alibi.form", "alibi.offset", "alibi.shape"
BELOW = "below = 1 << (heads.bit_length() - 1)"
BETWEEN = "slopes + between[0::2][: heads - below]"
BASE = "base = 2.0 ** (-8.0 / count)"
POWERS = "[base ** (head + 1) for head in range(count)]"

ALIBI_SLOPES = (
    Mutant("slopes-of-the-next-power-of-two", "forms/alibi_slopes", BELOW, "below = 1 << (heads - 1).bit_length()",
           KIND, SLOPES),
    Mutant("slopes-of-8-by-n-for-every-n", "forms/alibi_slopes", BELOW, "below = heads", KIND, SLOPES),
    Mutant("slopes-second-for-first", "forms/alibi_slopes", BETWEEN, BETWEEN.replace("0::2", "1::2"), KIND, SLOPES),
    Mutant("slopes-of-twice-as-many-heads-unthinned", "forms/alibi_slopes", BETWEEN, BETWEEN.replace("[0::2]", ""),
           KIND, SLOPES),
    Mutant("slopes-repeated", "forms/alibi_slopes", BETWEEN, "(slopes + slopes)[:heads]", KIND, SLOPES),
    Mutant("slopes-between-first", "forms/alibi_slopes", BETWEEN, "between[0::2][: heads - below] + slopes", KIND,
           SLOPES),
    Mutant("slopes-sorted", "forms/alibi_slopes", BETWEEN, f"sorted({BETWEEN}, reverse=True)", KIND, SLOPES),
    Mutant("slopes-in-reverse", "forms/alibi_slopes", POWERS, f"{POWERS}[::-1]", KIND, SLOPES),
    Mutant("slopes-from-1", "forms/alibi_slopes", POWERS, POWERS.replace("(head + 1)", "head"), KIND, SLOPES),
    Mutant("slopes-of-base-4-by-n", "forms/alibi_slopes", BASE, "base = 2.0 ** (-4.0 / count)", KIND, SLOPES),
    Mutant("slopes-of-a-power-of-e", "forms/alibi_slopes", BASE, "base = 2.718281828459045 ** (-8.0 / count)", KIND,
           SLOPES),
    Mutant("slopes-of-n-minus-1", "forms/alibi_slopes", BASE, "base = 2.0 ** (-8.0 / max(count - 1, 1))", KIND, SLOPES),
    Mutant("slopes-are-negative", "forms/alibi_slopes", "torch.tensor(slopes,", "-torch.tensor(slopes,", KIND, SLOPES),
    Mutant("slopes-in-bfloat16", "forms/alibi_slopes", "torch.float32", "torch.bfloat16", KIND, SLOPES),
    Mutant("slopes-in-float16", "forms/alibi_slopes_running", "return torch.cat([whole, factors.cumprod(0)])",
           "return torch.cat([whole, factors.cumprod(0)]).half()", KIND, SLOPES),
    Mutant("slopes-base-in-bfloat16", "forms/alibi_slopes_running", "torch.exp2(torch.tensor(-8.0 / below))",
           "torch.exp2(torch.tensor(-8.0 / below)).bfloat16().float()", KIND, SLOPES),
    Mutant("slopes-between-start-at-the-square", "forms/alibi_slopes_running", "    factors[0] = half\n", "", KIND,
           SLOPES),
    Mutant("slopes-linear", "forms/alibi_slopes", POWERS, "[base * (count - head) / count for head in range(count)]",
           KIND, SLOPES),
)  # fmt: skip

OFFSETS = 'ends - q_len if alignment == "lower_right"'
RESULT = "return -slopes.to(wide)[:, :, None, None] * distance"
PLACE = 'i if alignment == "upper_left" else length - q_len + i'

ALIBI_BIAS = (
    Mutant("alibi-sign", "forms/alibi_bias", RESULT, RESULT.replace("-slopes", "slopes"), KIND, BIAS),
    Mutant("alibi-heads-in-reverse", "forms/alibi_bias", RESULT, RESULT.replace("slopes.", "slopes.flip(1)."), KIND,
           BIAS),
    Mutant("alibi-slope-of-head-0", "forms/alibi_bias", RESULT,
           RESULT.replace("slopes.", "slopes[:, :1].expand_as(slopes)."), KIND, BIAS),
    Mutant("alibi-slopes-of-batch-0", "forms/alibi_bias", RESULT, RESULT.replace("slopes.", "slopes[:1]."),
           "varlen-or-paged/varlen-boundary-leak", BIAS),
    Mutant("alibi-slopes-are-absolute", "forms/alibi_bias_by_slot", "per_batch[b] * behind",
           "per_batch[b].abs() * behind", KIND, BIAS),
    Mutant("alibi-bias-in-bfloat16", "forms/alibi_bias", RESULT, f"{RESULT.replace('return ', 'return (')}).bfloat16()",
           KIND, BIAS),
    Mutant("alibi-bias-in-the-dtype-of-the-slopes", "forms/alibi_bias_by_slot",
           "dtype=torch.promote_types(alibi_slopes.dtype, torch.float32)", "dtype=alibi_slopes.dtype", KIND, BIAS),
    Mutant("alibi-distance-in-bfloat16", "forms/alibi_bias", "None] * distance", "None] * distance.bfloat16()", KIND,
           BIAS),
    Mutant("alibi-distance-squared", "forms/alibi_bias", "None] * distance", "None] * distance * distance.abs()", KIND,
           BIAS),
    Mutant("alibi-distance-one-more", "forms/alibi_bias", "None] * distance", "None] * (distance + distance.sign())",
           KIND, BIAS),
    Mutant("alibi-symmetric-for-signed", "forms/alibi_bias", 'if form == "symmetric":', "if True:",
           "scale-softcap-bias/silently-ignored-argument", FORM),
    Mutant("alibi-signed-for-symmetric", "forms/alibi_bias", 'if form == "symmetric":', "if False:", KIND, FORM),
    Mutant("alibi-flat-beyond-the-diagonal", "forms/alibi_bias", "distance = distance.abs()",
           "distance = distance.clamp(min=0)", KIND, FORM),
    Mutant("alibi-direction-swapped", "forms/alibi_bias", "distance = row - torch.arange(k_len)",
           "distance = torch.arange(k_len) - row", KIND, FORM),
    Mutant("alibi-without-the-offset", "forms/alibi_bias", OFFSETS, 'ends * 0 if alignment == "lower_right"',
           "causal-geometry/causal-top-left-vs-bottom-right", OFFSET),
    Mutant("alibi-always-with-the-offset", "forms/alibi_bias_by_slot", PLACE, "length - q_len + i",
           "causal-geometry/causal-top-left-vs-bottom-right", OFFSET),
    Mutant("alibi-offset-subtracted", "forms/alibi_bias", "[:, None] + offset", "[:, None] - offset",
           "causal-geometry/qlen-ne-klen", OFFSET),
    Mutant("alibi-offset-one-more", "forms/alibi_bias_by_slot", PLACE, f"{PLACE} + 1", "causal-geometry/qlen-ne-klen",
           OFFSET),
    Mutant("alibi-offset-never-below-0", "forms/alibi_bias", OFFSETS,
           '(ends - q_len).clamp(min=0) if alignment == "lower_right"', "causal-geometry/qlen-ne-klen", OFFSET),
    Mutant("alibi-offset-of-k-len", "forms/alibi_bias", OFFSETS,
           'torch.full_like(ends, k_len - q_len) if alignment == "lower_right"',
           "varlen-or-paged/chunked-prefill-offset", OFFSET),
    Mutant("alibi-offset-of-batch-0", "forms/alibi_bias", OFFSETS,
           'ends[:1].expand_as(ends) - q_len if alignment == "lower_right"', "varlen-or-paged/varlen-boundary-leak",
           OFFSET),
    Mutant("alibi-lengths-move-the-upper-left", "forms/alibi_bias", OFFSETS,
           '(ends - q_len if key_lengths is not None else ends * 0 + k_len - q_len) if alignment == "lower_right" '
           "or key_lengths is not None", "varlen-or-paged/chunked-prefill-offset", OFFSET),
    Mutant("alibi-integer-slopes-taken", "forms/alibi_bias", "or not alibi_slopes.dtype.is_floating_point", "",
           "validation-or-degenerate/reference-wrong", SHAPE),
    Mutant("alibi-slopes-of-three-dimensions-taken", "forms/alibi_bias_by_slot", " or alibi_slopes.dim() > 2", "",
           "validation-or-degenerate/reference-wrong", SHAPE,
           also=((" == 1 else alibi_slopes\n", " == 1 else alibi_slopes.flatten(1)\n"),)),
    Mutant("alibi-slopes-of-another-batch-taken", "forms/alibi_bias_by_slot", "len(per_batch) not in (1, len(lengths))",
           "False", "validation-or-degenerate/reference-wrong", SHAPE,
           also=(("per_batch.expand(len(lengths), -1)",
                  "per_batch[torch.arange(len(lengths)).clamp(max=len(per_batch) - 1)]"),)),
)  # fmt: skip

BUDGET, LENGTHS = "accuracy.alibi-within-budget", "key-lengths.visible"
ADDED = "scores = scores - slopes * distance"
GIVEN = "alibi_slopes.to(wide).expand(batch, heads)[:, :, None, None]"
SCORES = "scores = query.to(wide) @ key.transpose(-1, -2) * scale"
TAKEN = "tuple(alibi_slopes.shape) not in ((heads,), (batch, heads))"
TILED_SLOPE = "alibi_slopes[h] if alibi_slopes.ndim == 1 else alibi_slopes[b, h]"
UNCHECKED = "validation-or-degenerate/reference-wrong"

ALIBI = (
    Mutant("alibi-attention-without-a-bias", "forms/alibi", ADDED, "scores = scores - 0 * slopes * distance",
           "scale-softcap-bias/silently-ignored-argument", BIAS),
    Mutant("alibi-attention-prefers-far-keys", "forms/alibi", ADDED, ADDED.replace(" - ", " + "), KIND, BIAS),
    Mutant("alibi-attention-scales-the-bias", "forms/alibi", ADDED, f"{ADDED} * scale", KIND, BIAS),
    Mutant("alibi-attention-multiplies", "forms/alibi", ADDED, "scores = scores * (1 - slopes * distance)", KIND, BIAS),
    Mutant("alibi-attention-heads-in-reverse", "forms/alibi", GIVEN, f"{GIVEN}.flip(1)", KIND, BIAS),
    Mutant("alibi-attention-slope-of-the-key-head", "forms/alibi_tiled", TILED_SLOPE,
           TILED_SLOPE.replace("[h]", "[kv]").replace("[b, h]", "[b, kv]"), "gqa-heads/gqa-head-order", BIAS),
    Mutant("alibi-attention-slope-of-a-place-in-the-group", "forms/alibi_tiled", TILED_SLOPE,
           TILED_SLOPE.replace("[h]", "[h % (heads // key.shape[1])]"), "gqa-heads/gqa-head-order", BIAS),
    Mutant("alibi-attention-slopes-of-batch-0", "forms/alibi_tiled", TILED_SLOPE,
           TILED_SLOPE.replace("[b, h]", "[0, h]"), "varlen-or-paged/varlen-boundary-leak", BIAS),
    Mutant("alibi-attention-clamps-slopes", "forms/alibi", GIVEN, f"{GIVEN}.clamp(min=0.0)", KIND, BIAS),
    Mutant("alibi-attention-bias-in-base-2", "forms/alibi_tiled", "scores - finite) * math.log2(math.e)",
           "scores + bias - finite) * math.log2(math.e) - bias", KIND, BIAS),
    Mutant("alibi-attention-bias-restarts-each-block", "forms/alibi_tiled", "+ zero - place",
           "+ zero - (place - start)", "tail-tile-or-block-multiple/tail-tile-not-masked", BIAS),
    Mutant("alibi-attention-drops-keys-beyond", "forms/alibi", ADDED, f"{ADDED}.clamp(min=0)", KIND, FORM),
    Mutant("alibi-attention-signed-is-symmetric", "forms/alibi", 'if form == "symmetric":', "if True:",
           "scale-softcap-bias/silently-ignored-argument", FORM),
    Mutant("alibi-attention-without-the-offset", "forms/alibi", "distance = rows + offset",
           "distance = rows + 0 * offset", "causal-geometry/causal-top-left-vs-bottom-right", OFFSET),
    Mutant("alibi-attention-offset-of-k-len", "forms/alibi_tiled",
           "zero = length - q_len if", "zero = k_len - q_len if", "varlen-or-paged/chunked-prefill-offset", OFFSET),
    Mutant("alibi-attention-lengths-of-batch-0", "forms/alibi", "(lengths - q_len)", "(lengths[:1] - q_len)",
           "varlen-or-paged/varlen-boundary-leak", OFFSET),
    Mutant("alibi-attention-bias-of-the-triangle-alone", "forms/alibi", "(alignment or causal_alignment)",
           "causal_alignment", "scale-softcap-bias/silently-ignored-argument", OFFSET),
    Mutant("alibi-attention-triangle-of-the-bias", "forms/alibi_tiled", "[:, None] + corner", "[:, None] + zero",
           "causal-geometry/qlen-ne-klen", BIAS),
    Mutant("alibi-attention-heads-of-keys-repeated", "forms/alibi", "x.to(wide).repeat_interleave(group, 1)",
           "x.to(wide).repeat(1, group, 1, 1)", "gqa-heads/gqa-head-order", "grouped.head-map"),
    Mutant("alibi-attention-lengths-ignored", "forms/alibi", "visible = keys < lengths[:, None, None, None]",
           "visible = keys < k_len + 0 * lengths[:, None, None, None]",
           "varlen-or-paged/varlen-boundary-leak", LENGTHS),
    Mutant("alibi-attention-empty-cache-is-nan", "forms/alibi", ".masked_fill(empty, 0.0)", "",
           "varlen-or-paged/zero-length-kv", "key-lengths.zero"),
    Mutant("alibi-attention-scale-ignored", "forms/alibi", "head_dim**-0.5 if scale is None else scale",
           "head_dim**-0.5", "scale-softcap-bias/silently-ignored-argument", "attention.scale-explicit"),
    Mutant("alibi-attention-bias-in-bfloat16", "forms/alibi", ADDED, ADDED.replace("slopes *", "slopes.bfloat16() *"),
           KIND, BUDGET),
    Mutant("alibi-attention-scores-in-bfloat16", "forms/alibi", SCORES, f"{SCORES.replace('= query', '= (query')}"
           ").bfloat16().to(wide)", KIND, BUDGET),
    Mutant("alibi-attention-fewer-slopes-taken", "forms/alibi", TAKEN,
           TAKEN.replace("((heads,),", "((heads,), (1,),"), UNCHECKED, SHAPE),
    Mutant("alibi-attention-slopes-of-key-heads-taken", "forms/alibi_tiled", "alibi_slopes.shape[-1] != heads or ", "",
           UNCHECKED, SHAPE, also=((TILED_SLOPE, "alibi_slopes[..., h % alibi_slopes.shape[-1]].expand(batch)[b]"),)),
    Mutant("alibi-attention-another-batch-taken", "forms/alibi_tiled", "len(alibi_slopes) != batch",
           "len(alibi_slopes) < batch", UNCHECKED, SHAPE),
    Mutant("alibi-attention-integer-slopes-taken", "forms/alibi", "not alibi_slopes.dtype.is_floating_point or", "",
           UNCHECKED, SHAPE),
)  # fmt: skip
