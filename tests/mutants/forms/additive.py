"""Faults of additive attention."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

SCORE, SOFTMAX, MASK, ADDED = (
    "additive.score", "additive.softmax", "additive.mask", "accuracy.additive-within-budget",
)  # fmt: skip
TANH = "torch.tanh(from_query + from_key) @ v_a"
BOTH = "weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)"

MUTANTS = (
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
    Mutant("additive-mask-inverted", "forms/additive", "visible & shown", "visible & ~shown", KIND, MASK),
    Mutant("additive-mask-dropped", "forms/additive", "if attn_mask is not None:", "if False:", KIND, MASK),
    Mutant("additive-mask-of-batch-0", "forms/additive", "visible & shown", "visible & shown[:1]", KIND, MASK),
    Mutant("additive-mask-drops-the-triangle", "forms/additive", "if is_causal:", "if is_causal and attn_mask is None:",
           KIND, MASK),
    Mutant("additive-sees-the-next-key", "forms/additive", ".tril()", ".tril(1)", KIND, MASK),
    Mutant("additive-empty-row-is-nan", "forms/additive", BOTH, "weights = torch.softmax(scores, -1)", KIND, MASK),
    Mutant("additive-empty-row-is-the-mean", "forms/additive", "masked_fill(~visible, -torch.inf)",
           "masked_fill(~visible, -1e4)", KIND, MASK, also=((BOTH, "weights = torch.softmax(scores, -1)"),)),
    Mutant("additive-bias-multiplies", "forms/additive", "scores + attn_mask if", "scores * attn_mask if", KIND, MASK),
    Mutant("additive-bias-subtracted", "forms/additive", "scores + attn_mask if", "scores - attn_mask if", KIND, MASK),
    Mutant("additive-bias-only-hides", "forms/additive", "scores + attn_mask if", "scores if", KIND, MASK),
    Mutant("additive-bias-read-as-bool", "forms/additive", "scores + attn_mask if", "scores if", KIND, MASK,
           also=(("attn_mask > -torch.inf if", "attn_mask != 0 if"),)),
    Mutant("additive-bias-inside-tanh", "forms/additive", TANH,
           "torch.tanh(from_query + from_key + (0 if attn_mask is None or attn_mask.dtype == torch.bool else "
           "attn_mask[..., None].clamp_min(-1e4))) @ v_a", KIND, MASK, also=(("scores + attn_mask if", "scores if"),)),
    Mutant("additive-bias-of-head-0", "forms/additive", "scores + attn_mask if", "scores + attn_mask[:, :1] if",
           KIND, MASK),
    Mutant("additive-low-bias-taken-for-a-mask", "forms/additive", "attn_mask > -torch.inf if", "attn_mask > -1e4 if",
           KIND, "mask.finite-bias"),
    Mutant("additive-arguments-in-bfloat16", "forms/additive", TANH,
           "torch.tanh((from_query + from_key).bfloat16().to(wide)) @ v_a", KIND, ADDED),
    Mutant("additive-weights-in-bfloat16", "forms/additive", "weights @ value", "weights.bfloat16().to(wide) @ value",
           KIND, ADDED),
)  # fmt: skip
