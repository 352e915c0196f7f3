"""Faults of the softcap: where it stands, its unit, its size, and its gradient."""

from mutants.house import Mutant

SCORES, BIAS, LSE, NONE = "softcap.scores", "softcap.bias", "softcap.lse", "softcap.none"
GRADIENT, RANGE = "softcap.gradient", "softcap.range"

ORDER = "scale-softcap-bias/softcap-order"
IGNORED = "scale-softcap-bias/silently-ignored-argument"
UNIT = "scale-softcap-bias/scale-inverted"
FALLBACK = "causal-geometry/fallback-path-drops-option"
UNCHECKED = "validation-or-degenerate/silently-accepted"
LEFT_OUT = "none public: a factor of the gradient left out"
COARSE = "precision-or-range/bf16-softmax"

P, R = "softcap_plain", "softcap_recompute"

IF_CAP = "    if cap > 0:\n        scores = cap * tanh(scores / cap)\n"  # of `softcap_plain`
CAP = "scores = cap * tanh(scores / cap)"
SCALED = "scores = query.to(wide) @ key.transpose(-1, -2) * scale"
HIDE = "    scores = scores.masked_fill(~visible, -torch.inf)\n"
ADD = "scores = scores + attn_mask.to(wide)"
LSE_LINE = "lse = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)"
CHECK = 'if not 0 <= cap < float("inf"):'
VISIBLE = "    visible = torch.ones(scores.shape, dtype=torch.bool)\n"

DS = "ds = dz * (1 - t * t)"  # of `softcap_recompute`
DQ, DK = "dq = scale * (ds @ k)", "dk = sum_readers(scale * (ds.transpose(-1, -2) @ q), key.shape)"
DMASK = "dmask = dz.sum_to_size"
AGAIN = "scores, t = scores_of(q, k, attn_mask, is_causal, scale, cap)"


def where(condition: str) -> str:
    """The cap under a further condition."""
    return IF_CAP.replace("cap > 0", f"cap > 0 and {condition}")


MUTANTS = (
    Mutant("softcap-ignored", P, IF_CAP, "", IGNORED, SCORES, "softcap-dropped"),
    Mutant("softcap-ignored-where-causal", P, IF_CAP, where("not is_causal"), FALLBACK, SCORES),
    Mutant("softcap-ignored-where-masked", P, IF_CAP, where("attn_mask is None"), FALLBACK, BIAS),
    Mutant("softcap-ignored-with-a-window", P, IF_CAP, where("window_size is None"), FALLBACK, BIAS),
    Mutant("softcap-ignored-where-grouped", P, IF_CAP, where("group == 1"), FALLBACK, SCORES),
    Mutant("softcap-ignored-for-one-query", P, IF_CAP, where("q_len > 1"), FALLBACK, SCORES),
    Mutant("softcap-ignored-in-16-bits", P, IF_CAP, where("query.dtype.itemsize > 2"), FALLBACK, SCORES),
    Mutant("softcap-ignored-for-a-negative-scale", P, IF_CAP, where("scale > 0"), FALLBACK, SCORES),
    Mutant("softcap-after-the-bias", P, IF_CAP, "", ORDER, BIAS, "softcap-after-bias",
           also=((VISIBLE, f"{VISIBLE}    capped_later = cap > 0\n"),
                 (ADD, f"{ADD}\n        visible = visible & (attn_mask != -torch.inf)"),
                 (HIDE, f"    if capped_later:\n        {CAP}\n{HIDE}"))),
    Mutant("softcap-after-the-mask", P, IF_CAP, "", ORDER, BIAS,
           also=((HIDE, f"{HIDE}    if cap > 0:\n        {CAP}\n"),)),
    Mutant("softcap-on-unscaled-scores", P, CAP,
           "scores = cap * tanh(scores / scale / cap) * scale if scale else scores",
           UNIT, SCORES, "softcap-before-scale"),
    Mutant("softcap-in-base-2", P, CAP, "scores = cap * 0.6931471805599453 * tanh(scores / (cap * 0.6931471805599453))",
           "lse-or-split-merge/lse-wrong-base", SCORES, "softcap-in-base-2"),
    Mutant("softcap-not-multiplied-back", P, CAP, "scores = tanh(scores / cap)", LEFT_OUT, SCORES),
    Mutant("softcap-not-divided-before", P, CAP, "scores = cap * tanh(scores)", LEFT_OUT, SCORES),
    Mutant("softcap-by-clamping", P, CAP, "scores = scores.clamp(-cap, cap)", "none public: a hard cap for a soft one",
           SCORES, "softcap-by-clamping"),
    Mutant("softcap-of-50-always", P, CAP, "scores = 50.0 * tanh(scores / 50.0)", IGNORED, SCORES),
    Mutant("softcap-in-whole-numbers", P, CAP, "scores = max(1, int(cap)) * tanh(scores / max(1, int(cap)))",
           "none public: a cap read as a whole number", SCORES),
    Mutant("softcap-by-a-series", P, CAP, "x = (scores / cap).clamp(-1.5, 1.5)\n"
           "        scores = cap * x * (1 - x * x / 3 + 2 * x**4 / 15)",
           "none public: a tanh for small scores", SCORES),
    Mutant("softcap-tanh-in-16-bits", P, CAP, "scores = cap * tanh((scores / cap).to(torch.bfloat16)).to(wide)", COARSE,
           "accuracy.output-within-budget"),
    Mutant("softcap-tanh-fast-in-float32", P, CAP,
           "x = scores / cap\n        scores = cap * tanh(x) * (1 + 2.0**-11 * torch.sin(40.0 * x))", COARSE,
           "accuracy.output-within-budget"),
    Mutant("softcap-missing-from-lse", P, LSE_LINE,
           "lse = torch.logsumexp(plain.masked_fill(~visible, -torch.inf), -1)", ORDER, LSE, "softcap-missing-from-lse",
           also=((SCALED, f"{SCALED}\n    plain = scores"),
                 (ADD, f"{ADD}\n        plain = plain + attn_mask.to(wide)"))),
    Mutant("softcap-of-0-caps", P, "    if cap > 0:\n", "    if softcap is not None:\n        cap = max(cap, 1e-30)\n",
           IGNORED, NONE),
    Mutant("softcap-far-above-is-coarse", P, CAP, "scores = (cap * tanh(scores / cap) + cap) - cap * 0.999",
           "none public: scores counted from the cap", "softcap.scores"),
    Mutant("softcap-below-0-is-none", P, CHECK, 'if not cap < float("inf"):', UNCHECKED, RANGE),
    Mutant("softcap-below-0-is-its-size", P, CHECK, 'cap = abs(cap)\n    if not 0 <= cap < float("inf"):', UNCHECKED,
           RANGE),
    Mutant("softcap-nan-is-none", P, CHECK, 'if cap < 0 or cap == float("inf"):', UNCHECKED, RANGE),
    Mutant("softcap-infinite-is-none", P, CHECK, 'cap = 0.0 if cap == float("inf") else cap\n    if not 0 <= cap:',
           UNCHECKED, RANGE),
    Mutant("grad-softcap-missing", R, DS, "ds = dz", LEFT_OUT, GRADIENT, "grad-softcap-slope-missing"),
    Mutant("grad-softcap-missing-from-the-query", R, DQ, "dq = scale * (dz @ k)", LEFT_OUT, GRADIENT,
           "grad-softcap-slope-missing"),
    Mutant("grad-softcap-missing-from-the-key", R, DK, DK.replace("ds.transpose", "dz.transpose"), LEFT_OUT, GRADIENT,
           "grad-softcap-slope-missing"),
    Mutant("grad-softcap-tanh-for-its-slope", R, DS, "ds = dz * (t if cap > 0 else 1)", LEFT_OUT, GRADIENT,
           "grad-softcap-tanh"),
    Mutant("grad-softcap-1-minus-tanh", R, DS, "ds = dz * (1 - t)", LEFT_OUT, GRADIENT, "grad-softcap-1-minus-tanh"),
    Mutant("grad-softcap-slope-over-the-cap", R, DS, "ds = dz * (1 - t * t) / (cap or 1)", LEFT_OUT, GRADIENT,
           "grad-softcap-over-the-cap"),
    Mutant("grad-softcap-slope-of-the-capped-score", R, DS, "ds = dz * (1 - torch.tanh(t) ** 2)", LEFT_OUT, GRADIENT,
           "grad-softcap-of-capped-score"),
    Mutant("grad-softcap-on-the-bias-too", R, DMASK, "dmask = ds.sum_to_size", LEFT_OUT, "backward.bias",
           "grad-bias-capped"),
    Mutant("grad-softcap-on-the-bias-in-16-bits", R, DMASK, "dmask = (ds if query.itemsize == 2 else dz).sum_to_size",
           LEFT_OUT, "backward.bias", "grad-bias-capped"),
    Mutant("grad-softcap-recomputed-without", R, f"        {AGAIN}\n        p =",
           "        scores, t = scores_of(q, k, attn_mask, is_causal, scale, 0.0)\n        p =",
           "backward/fwd-bwd-mask-mismatch", GRADIENT),
    Mutant("grad-softcap-slope-where-square-only", R, DS,
           "ds = dz * (1 - t * t if dz.shape[-1] == dz.shape[-2] else 1)",
           FALLBACK, GRADIENT),
    Mutant("grad-softcap-slope-in-16-bits", R, DS, "ds = dz * (1 - t * t).to(torch.bfloat16).to(t.dtype)", COARSE,
           "accuracy.gradients-within-budget"),
)  # fmt: skip
