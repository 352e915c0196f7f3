"""Faults of the scale: the default, explicit ones, and where it is applied."""

from mutants.house import Mutant

DEFAULT, EXPLICIT = "attention.scale-default", "attention.scale-explicit"
IGNORED = "scale-softcap-bias/silently-ignored-argument"
SCALED = "scores = scores * scale"
SCALE = "scale = head_dim**-0.5 if scale is None else scale"
BUDGET = "accuracy.output-within-budget"

MUTANTS = (
    Mutant("scale-missing", "plain", SCALED, "scores = scores + 0", IGNORED, DEFAULT, "scale-missing"),
    Mutant("scale-missing-tiled", "tiled", SCALED, "scores = scores + 0", IGNORED, DEFAULT, "scale-missing"),
    Mutant("scale-inverted", "plain", SCALED, "scores = scores / scale",
           "scale-softcap-bias/scale-inverted", DEFAULT, "scale-inverted"),
    Mutant("scale-twice", "plain", SCALED, "scores = scores * scale * scale",
           "scale-softcap-bias/scale-inverted", DEFAULT, "scale-twice"),
    Mutant("scale-of-padded-dim", "padded", SCALE,
           "padded_dim = -(-head_dim // BLOCK) * BLOCK\n    scale = padded_dim**-0.5 if scale is None else scale",
           "tail-tile-or-block-multiple/head-dim-hard-coded", DEFAULT, "scale-of-padded-dim"),
    Mutant("scale-of-value-dim", "plain", SCALE, SCALE.replace("head_dim", "value.shape[-1]"),
           "gqa-heads/qk-v-head-dim-swap", DEFAULT, "scale-of-value-dim"),
    Mutant("scale-of-head-dim-64", "plain", SCALE, SCALE.replace("head_dim**-0.5", "0.125"),
           "tail-tile-or-block-multiple/head-dim-hard-coded", DEFAULT),
    Mutant("scale-to-three-digits", "plain", SCALE, SCALE.replace("head_dim**-0.5", "round(head_dim**-0.5, 3)"),
           "none public: a constant copied from a table", DEFAULT),
    Mutant("scale-rounded-to-bfloat16", "plain", SCALE, f"{SCALE}\n    scale = float(torch.tensor(scale).bfloat16())",
           "precision-or-range/bf16-softmax", DEFAULT),
    Mutant("scale-rounded-to-the-dtype", "plain", SCALE,
           f"{SCALE}\n    scale = float(torch.tensor(scale, dtype=query.dtype))",
           "precision-or-range/bf16-softmax", EXPLICIT),
    Mutant("scale-off-by-three-millionths", "plain", SCALED, "scores = scores * (scale * (1 + 3.4e-6))",
           "none public: a small error on all scores is a change of temperature", DEFAULT),
    Mutant("scale-absolute", "plain", SCALED, "scores = scores * abs(scale)",
           "scale-softcap-bias/abs-scale", EXPLICIT, "scale-absolute"),
    Mutant("scale-sign-lost-in-the-root", "square_root_scale", "math.copysign(root, scale)", "root",
           "scale-softcap-bias/sqrt-split-scale", EXPLICIT, "scale-absolute"),
    Mutant("scale-root-of-a-negative", "square_root_scale", "math.sqrt(abs(scale))",
           "float(abs(scale) ** 0.5 if scale >= 0 else math.nan)",
           "scale-softcap-bias/sqrt-split-scale", EXPLICIT),
    Mutant("scale-zero-is-default", "plain", SCALE, "scale = scale or head_dim**-0.5",
           IGNORED, EXPLICIT, "scale-zero-is-default"),
    Mutant("scale-explicit-ignored", "plain", SCALE, "scale = head_dim**-0.5",
           IGNORED, EXPLICIT, "scale-explicit-ignored"),
    Mutant("scale-explicit-on-top-of-default", "plain", SCALE,
           "scale = head_dim**-0.5 * (1.0 if scale is None else scale)",
           "scale-softcap-bias/scale-inverted", EXPLICIT),
    Mutant("scale-explicit-at-most-1", "plain", SCALE, SCALE.replace("else scale", "else min(scale, 1.0)"),
           "none public: a clamp", EXPLICIT),
    Mutant("scale-cached-by-head-dim", "plain", SCALE,
           "scale = SCALES.setdefault(head_dim, head_dim**-0.5 if scale is None else scale)",
           "strides-or-layout/input-aliased", EXPLICIT, also=(("import torch\n", "import torch\n\nSCALES = {}\n"),)),
    Mutant("scale-negative-takes-the-minimum", "tiled", "scores.amax(-1, keepdim=True)",
           "(scores.amax(-1, keepdim=True) if scale >= 0 else scores.amin(-1, keepdim=True))",
           "scale-softcap-bias/max-before-negative-scale", "softmax.any-finite-score"),
    Mutant("scale-not-on-the-bias-in-base-2", "exp2", "attn_mask[..., keys].to(wide)",
           "attn_mask[..., keys].to(wide) / LOG2_E",
           "scale-softcap-bias/softcap-order", "mask.additive"),
    Mutant("scale-on-a-rounded-query", "scaled_query", "(q * scale) @", "(q * scale).to(query.dtype).to(q.dtype) @",
           "precision-or-range/bf16-softmax", BUDGET),
)  # fmt: skip
