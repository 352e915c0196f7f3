"""Faults of ALiBi: ignored, of the wrong sign, form, corner, head or batch element, in the wrong unit, not in both
passes, and in the gradient of the slopes."""

from mutants.house import Mutant

IGNORED = "scale-softcap-bias/silently-ignored-argument"
UNIT = "none public: a bias in the wrong unit"
SIGN = "none public: a sign"
HEAD, PASSES = "gqa-heads/gqa-head-order", "backward/fwd-bwd-mask-mismatch"
BIAS, FORM, OFFSET, GRADIENT, SHAPE = (f"alibi.{name}" for name in ("bias", "form", "offset", "gradient", "shape"))

GIVEN = "if slopes is not None:"  # of `alibi_flash`
DISTANCE = "distance = (rows - positions).abs()"
SLOPE = "slope = slopes.to(scores.dtype)[:, :, None, None]"
ADDED = "scores = scores - slope * distance"
AGAIN = "again = scores_of(q, k, attn_mask, slopes, is_causal, scale, start)"
RESHAPED = "alibi_slopes = alibi_slopes.reshape(-1, query.shape[1])"
AHEAD = "ahead = torch.arange(k_len) - torch.arange(q_len)[:, None] - (k_len - q_len)"  # of `alibi_signed`
SIGNED = "scores = scores + alibi_slopes.to(scores.dtype).reshape(-1, heads, 1, 1) * ahead"
UPPER_LEFT, LOWER_RIGHT = 'return first["upper_left"]', 'return first["lower_right"]'  # of alibi_mixed, _from_the_end
CORNERS = "causal-geometry/causal-top-left-vs-bottom-right"
DSLOPES = "dslopes -= (ds * distance).sum((2, 3))"  # of `alibi_learned`
FAR = "distance = (rows - torch.arange(k.shape[2])[keys]).abs()"
SUMMED = "dslopes = dslopes.sum_to_size(slopes.shape)"
LAST, LOST = "backward/dbias-broadcast-last-writer", "none public: a gradient left out"

MUTANTS = (
    Mutant("alibi-ignored", "alibi_flash", ADDED, "pass", IGNORED, BIAS, "alibi-dropped"),
    Mutant("alibi-ignored-with-causal", "alibi_flash", GIVEN, "if slopes is not None and not is_causal:", IGNORED,
           BIAS),
    Mutant("alibi-ignored-with-mask", "alibi_flash", GIVEN, "if slopes is not None and attn_mask is None:", IGNORED,
           BIAS),
    Mutant("alibi-ignored-beyond-the-first-tile", "alibi_flash", GIVEN, "if slopes is not None and start == 0:",
           "none public: a bias on one tile alone", BIAS),
    Mutant("alibi-added", "alibi_flash", ADDED, "scores = scores + slope * distance", SIGN, BIAS, "alibi-negated"),
    Mutant("alibi-twice", "alibi_flash", ADDED, "scores = scores - 2 * slope * distance", UNIT, BIAS),
    Mutant("alibi-scaled", "alibi_flash", ADDED, "scores = scores - scale * slope * distance", UNIT, BIAS,
           "alibi-scaled"),
    Mutant("alibi-in-base-2", "alibi_flash", ADDED, "scores = scores - slope * distance * 0.6931471805599453", UNIT,
           BIAS),
    Mutant("alibi-distance-in-a-tile", "alibi_flash", DISTANCE, "distance = (rows - positions % TILE).abs()",
           "none public: a distance that begins again with each tile", BIAS),
    Mutant("alibi-distance-in-bfloat16", "alibi_flash", DISTANCE,
           "distance = (rows - positions).abs().bfloat16().to(scores.dtype)", "none public: a distance of 8 bits",
           BIAS),
    Mutant("alibi-slopes-in-bfloat16", "alibi_flash", SLOPE,
           "slope = slopes.bfloat16().to(scores.dtype)[:, :, None, None]", "none public: slopes of 8 bits", BIAS),
    Mutant("alibi-of-key-head", "alibi_flash", RESHAPED,
           "group = query.shape[1] // key.shape[1]\n        alibi_slopes = "
           "alibi_slopes.reshape(-1, query.shape[1])[:, torch.arange(query.shape[1]) // group]", HEAD, BIAS,
           "alibi-of-key-head"),
    Mutant("alibi-heads-reversed", "alibi_flash", RESHAPED, f"{RESHAPED}.flip(1)", HEAD, BIAS, "alibi-heads-reversed"),
    Mutant("alibi-of-head-0", "alibi_flash", RESHAPED, f"{RESHAPED}[:, :1]", HEAD, BIAS, "alibi-of-head-0"),
    Mutant("alibi-of-batch-0", "alibi_flash", RESHAPED, f"{RESHAPED}[:1]", "none public: slopes of batch element 0",
           BIAS),
    Mutant("alibi-negative-slopes-cut", "alibi_flash", SLOPE, f"{SLOPE}.clamp(min=0.0)", "none public: slopes cut off",
           BIAS),
    Mutant("alibi-slope-0-taken-for-a-default", "alibi_flash", SLOPE,
           "slope = slopes.masked_fill(slopes == 0, 0.25).to(scores.dtype)[:, :, None, None]",
           "none public: 0 taken for none", BIAS),
    Mutant("alibi-signed", "alibi_flash", DISTANCE, "distance = rows - positions", "none public: the other form", FORM,
           "alibi-other-form"),
    Mutant("alibi-none-beyond-the-diagonal", "alibi_flash", DISTANCE, "distance = (rows - positions).clamp(min=0)",
           "none public: the future is near", FORM),
    Mutant("alibi-symmetric", "alibi_signed", SIGNED,
           "scores = scores - alibi_slopes.to(scores.dtype).reshape(-1, heads, 1, 1) "
           "* ahead.abs()", "none public: the other form", FORM, "alibi-other-form"),
    Mutant("alibi-other-corner", "alibi_flash", DISTANCE,
           "distance = (rows + k.shape[2] - q.shape[2] - positions).abs()",
           "causal-geometry/causal-top-left-vs-bottom-right", OFFSET, "alibi-other-corner"),
    Mutant("alibi-distance-from-one-beyond", "alibi_flash", DISTANCE, "distance = (rows - positions - 1).abs()",
           "none public: a distance one off", BIAS),
    Mutant("alibi-without-offset-in-the-lse", "alibi_signed", SIGNED, "scores = scores + alibi_slopes.to(scores.dtype)"
           ".reshape(-1, heads, 1, 1) * (torch.arange(k_len) - (k_len - 1))", "none public: the row is left out",
           OFFSET),
    Mutant("alibi-missing-in-the-backward", "alibi_flash", AGAIN,
           "again = scores_of(q, k, attn_mask, None, is_causal, scale, start)", PASSES, GRADIENT,
           "backward-alibi-dropped"),
    Mutant("alibi-doubled-in-the-backward", "alibi_flash", AGAIN,
           "again = scores_of(q, k, attn_mask, slopes if slopes is None else 2 * slopes, is_causal, scale, start)",
           PASSES,
           GRADIENT),
    Mutant("alibi-scales-the-gradient", "alibi_flash", "dq += scale * (ds @ k[:, :, keys])",
           "dq += scale * (1.0 if slopes is None else 1 + slopes[:, :, None, None].to(wide)) * (ds @ k[:, :, keys])",
           "none public: the slope taken for a factor of the query", GRADIENT),
    Mutant("alibi-one-slope-spread", "alibi_flash", "if tuple(alibi_slopes.shape) not in (tuple(query.shape[1:2]), "
           "tuple(query.shape[:2])):",
           "if alibi_slopes.numel() not in (1, query.shape[1], query.shape[0] * query.shape[1]):",
           "none public: one slope is spread over all heads", SHAPE,
           also=((RESHAPED,
           "alibi_slopes = alibi_slopes.reshape(-1, alibi_slopes.shape[-1] if alibi_slopes.ndim else 1)"),)),
    Mutant("alibi-from-the-causal-lower-right", "alibi_mixed", UPPER_LEFT, LOWER_RIGHT, CORNERS, OFFSET,
           "alibi-other-corner"),
    Mutant("alibi-from-the-causal-upper-left", "alibi_from_the_end", LOWER_RIGHT, UPPER_LEFT, CORNERS, OFFSET,
           "alibi-other-corner"),
    Mutant("alibi-from-the-longest-length", "alibi_from_the_end", LOWER_RIGHT, 'return first["lower_right"].max()',
           CORNERS, OFFSET),
    Mutant("slopes-gradient-missing", "alibi_learned", DSLOPES, "pass", LOST, GRADIENT, "grad-slopes-zero"),
    Mutant("slopes-gradient-negated", "alibi_learned", DSLOPES, "dslopes += (ds * distance).sum((2, 3))", SIGN,
           GRADIENT, "grad-slopes-negated"),
    Mutant("slopes-gradient-halved", "alibi_learned", DSLOPES, "dslopes -= 0.5 * (ds * distance).sum((2, 3))", UNIT,
           GRADIENT),
    Mutant("slopes-gradient-scaled", "alibi_learned", DSLOPES, "dslopes -= scale * (ds * distance).sum((2, 3))", UNIT,
           GRADIENT, "grad-slopes-scaled"),
    Mutant("slopes-gradient-without-distance", "alibi_learned", DSLOPES, "dslopes -= ds.sum((2, 3))",
           "none public: that of a constant bias", GRADIENT, "grad-slopes-without-distance"),
    Mutant("slopes-gradient-of-the-last-tile", "alibi_learned", DSLOPES, "dslopes = -(ds * distance).sum((2, 3))",
           LAST, GRADIENT),
    Mutant("slopes-gradient-of-the-last-row", "alibi_learned", DSLOPES, "dslopes -= (ds * distance)[:, :, -1].sum(2)",
           LAST, GRADIENT),
    Mutant("slopes-gradient-of-the-first-64-rows", "alibi_learned", DSLOPES,
           "dslopes -= (ds * distance)[:, :, :64].sum((2, 3))", "none public: rows beyond a tile left out", GRADIENT),
    Mutant("slopes-gradient-from-the-other-corner", "alibi_learned", FAR,
           "distance = (rows + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])[keys]).abs()", CORNERS, GRADIENT,
           "grad-slopes-other-corner"),
    Mutant("slopes-gradient-of-the-other-form", "alibi_learned", FAR,
           "distance = rows - torch.arange(k.shape[2])[keys]", "none public: the other form", GRADIENT,
           "grad-slopes-other-form"),
    Mutant("slopes-gradient-of-a-distance-in-a-tile", "alibi_learned", FAR,
           "distance = (rows - torch.arange(TILE)[: k.shape[2] - start]).abs()",
           "none public: a distance that begins again with each tile", GRADIENT),
    Mutant("slopes-gradient-of-the-last-batch", "alibi_learned", SUMMED, "dslopes = dslopes[-len(slopes) :]", LAST,
           GRADIENT, "grad-slopes-of-one-batch"),
    Mutant("slopes-gradient-mean-of-the-batch", "alibi_learned", SUMMED,
           f"{SUMMED} * len(slopes) / len(dslopes)", "none public: a mean for a sum", GRADIENT,
           "grad-slopes-mean-of-batch"),
    Mutant("slopes-gradient-summed-for-each-batch", "alibi_learned", SUMMED,
           "dslopes = dslopes.sum(0, keepdim=True).expand(slopes.shape)", "none public: a sum too many", GRADIENT),
    Mutant("slopes-gradient-summed-over-heads", "alibi_learned", SUMMED,
           f"{SUMMED}.sum(1, keepdim=True).expand(slopes.shape)", "none public: one gradient for all heads", GRADIENT,
           "grad-slopes-summed-over-heads"),
    Mutant("slopes-gradient-of-key-heads", "alibi_learned", SUMMED,
           f"group = q.shape[1] // key.shape[1]\n        {SUMMED}.unflatten(1, (-1, group)).sum(2)"
           ".repeat_interleave(group, 1)", HEAD, GRADIENT, "grad-slopes-of-key-heads"),
    Mutant("slopes-gradient-of-groups-and-batches-doubled", "alibi_learned", SUMMED,
           f"dslopes = dslopes * (2 if len(slopes) > 1 and key.shape[1] < query.shape[1] else 1)\n        {SUMMED}",
           "none public: two options that are right alone", GRADIENT),
    Mutant("slopes-gradient-without-that-of-the-lse", "alibi_learned",
           "delta = (do * output.to(lse.dtype)).sum(-1) - grad_lse", "delta = (do * output.to(lse.dtype)).sum(-1)",
           LOST, GRADIENT),
)  # fmt: skip
