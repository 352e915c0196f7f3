"""Faults of the bias of ALiBi."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

BIAS, FORM, OFFSET, SHAPE = "alibi.bias", "alibi.form", "alibi.offset", "alibi.shape"
OFFSETS = 'ends - q_len if alignment == "lower_right"'
RESULT = "return -slopes.to(wide)[:, :, None, None] * distance"
PLACE = 'i if alignment == "upper_left" else length - q_len + i'

MUTANTS = (
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
    Mutant("alibi-bias-distance-in-bfloat16", "forms/alibi_bias", "None] * distance", "None] * distance.bfloat16()",
           KIND, BIAS),
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
