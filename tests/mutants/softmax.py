"""Faults of the softmax: the base, the sum, the running maximum, NaN, and approximations."""

from mutants.house import Mutant

WEIGHTS, RANGE, NAN, BUDGET = (
    "softmax.weights", "softmax.any-finite-score", "mask.visible-nan", "accuracy.output-within-budget",
)  # fmt: skip
INIT = "softmax-max-or-sentinel/online-softmax-init"
SENTINEL = "softmax-max-or-sentinel/finite-sentinel-max"
FIXED = "softmax-max-or-sentinel/fixed-max"
SWALLOWED = "masked-value-leak/nan-input-swallowed"
NORMAL = "none public: the textbook's mistake"
ONLINE = "none public: a line of the online softmax left out"
LARGE = "precision-or-range/large-logit-nan"

TOP = "top = torch.full((len(rows), 1), -torch.inf"  # of `tiled`
ACC = "acc = acc * rescale + weights @ v_tile.to(wide)"
SUM = "total = total * rescale + weights.sum(-1, keepdim=True)"
NEW_TOP = "new_top = torch.maximum(top, scores.amax(-1, keepdim=True))"
DIVIDE = "weights = weights / total.masked_fill(total == 0, 1.0)"  # of `plain`
GUARD = "top = top.masked_fill(top == -torch.inf, 0.0)"
EXP = "weights = torch.exp(scores - top)"
SCALED = "scores = scores * scale"
STORE = "output = output.to(query.dtype)"

MUTANTS = (
    Mutant("softmax-base-2", "plain", EXP, "weights = torch.exp2(scores - top)", "lse-or-split-merge/lse-wrong-base",
           WEIGHTS, "softmax-base-2"),
    Mutant("softmax-unnormalised", "plain", DIVIDE, "weights = weights * 1.0", NORMAL, WEIGHTS, "softmax-unnormalised"),
    Mutant("softmax-over-queries", "plain", DIVIDE, "weights = torch.softmax(scores, dim=-2).nan_to_num(0.0)",
           "none public: the other dim", WEIGHTS, "softmax-over-queries"),
    Mutant("softmax-off-by-one-in-the-sum", "plain", DIVIDE, "weights = weights / (1.0 + total)",
           "none public: softmax with a silent sink", WEIGHTS),
    Mutant("softmax-epsilon-in-the-sum", "plain", DIVIDE, "weights = weights / (total + 1e-6)",
           "none public: an epsilon against 0/0", WEIGHTS),
    Mutant("maximum-starts-at-0", "tiled", TOP, TOP.replace("-torch.inf", "0.0"), INIT, RANGE),
    Mutant("maximum-starts-at-minus-5e4", "tiled", TOP, TOP.replace("-torch.inf", "-5e4"), SENTINEL, RANGE),
    Mutant("maximum-starts-at-float16-lowest", "key_by_key", "top = torch.full((*query.shape[:3], 1), -torch.inf",
           "top = torch.full((*query.shape[:3], 1), -65504.0", SENTINEL, RANGE),
    Mutant("maximum-not-taken-out", "plain", GUARD, "top = torch.zeros_like(top)", LARGE, RANGE),
    Mutant("maximum-fixed-at-20", "plain", GUARD, "top = torch.full_like(top, 20.0)", FIXED, RANGE),
    Mutant("maximum-of-the-first-tile", "tiled", NEW_TOP,
           f"{NEW_TOP} if start == 0 else top", FIXED, RANGE),
    Mutant("maximum-of-the-whole-head", "plain", GUARD, f"{GUARD}\n    top = top.amax(-2, keepdim=True).expand_as(top)"
           " if q_len else top", FIXED, RANGE),
    Mutant("maximum-of-this-tile-only", "tiled", NEW_TOP, "new_top = scores.amax(-1, keepdim=True)", INIT, WEIGHTS),
    Mutant("maximum-not-kept", "tiled", "                    top = new_top\n", "", ONLINE, WEIGHTS),
    Mutant("rescale-missing", "tiled", ACC, ACC.replace("acc * rescale", "acc"), ONLINE, WEIGHTS, "rescale-missing"),
    Mutant("rescale-missing-in-the-sum", "tiled", SUM, SUM.replace("total * rescale", "total"), ONLINE, WEIGHTS),
    Mutant("rescale-missing-in-both", "tiled", "rescale = torch.exp(top - safe)", "rescale = torch.ones_like(top)",
           ONLINE, WEIGHTS),
    Mutant("rescale-inverted", "tiled", "rescale = torch.exp(top - safe)",
           "rescale = torch.exp(safe - top.masked_fill(top == -torch.inf, 0.0))", ONLINE, WEIGHTS),
    Mutant("rescale-missing-at-tail-keys", "tiled", ACC,
           ACC.replace("rescale", "(rescale if len(keys) == K_TILE else 1.0)"),
           "tail-tile-or-block-multiple/tail-tile-not-masked", WEIGHTS),
    Mutant("rescale-too-lazy", "lazy_rescale", "TILE, THRESHOLD = 16, 4.0", "TILE, THRESHOLD = 16, 200.0", LARGE,
           RANGE),
    Mutant("rescale-lazy-in-the-sum-only", "lazy_rescale", "acc = acc * rescale",
           "acc = acc * torch.where(rescale < 1e-3, rescale, 1.0)", ONLINE, WEIGHTS),
    Mutant("scores-clamped-to-60", "plain", SCALED, f"{SCALED}\n    scores = scores.clamp(-60.0, 60.0)",
           "none public: a clamp against overflow", RANGE),
    Mutant("scores-clamped-to-float16", "plain", SCALED, f"scores = scores.clamp(-65504.0, 65504.0)\n    {SCALED}",
           "precision-or-range/fp16-scores", RANGE),
    Mutant("low-scores-taken-for-masked", "plain", SCALED,
           f"{SCALED}\n    scores = scores.masked_fill(scores < -10000.0, -torch.inf)", SENTINEL, RANGE),
    Mutant("large-scores-give-nan", "plain", SCALED, f"{SCALED}\n    scores = scores + 0 * (scores * 1e34)",
           LARGE, RANGE),
    Mutant("small-weights-dropped", "plain", DIVIDE, f"weights = weights * (weights > 1e-3)\n    {DIVIDE}",
           "none public: sparsity by a threshold", BUDGET),
    Mutant("nan-swallowed-in-the-output", "plain", STORE, "output = output.nan_to_num(0.0).to(query.dtype)",
           SWALLOWED, NAN),
    Mutant("nan-swallowed-in-the-scores", "plain", SCALED,
           f"{SCALED}\n    scores = scores.nan_to_num(0.0, torch.inf, -torch.inf)", SWALLOWED, NAN),
    Mutant("nan-scores-hidden", "plain", SCALED,
           f"{SCALED}\n    scores = scores.masked_fill(scores.isnan(), -torch.inf)",
           SWALLOWED, NAN),
    Mutant("nan-query-gives-an-empty-row", "plain", "total = weights.sum(-1, keepdim=True)",
           "total = weights.sum(-1, keepdim=True).nan_to_num(0.0)\n    weights = weights.nan_to_num(0.0)", SWALLOWED,
           NAN),
    Mutant("nan-spreads-over-columns", "plain", STORE,
           f"output = output + 0 * output.sum(-1, keepdim=True)\n    {STORE}",
           "none public: NaN where no NaN belongs", NAN),
    Mutant("nan-spreads-over-rows", "plain", STORE, f"output = output + 0 * output.sum(-2, keepdim=True)\n    {STORE}",
           "none public: NaN where no NaN belongs", NAN),
    Mutant("log2-e-is-1.442", "exp2", "LOG2_E = math.log2(math.e)", "LOG2_E = 1.442",
           "none public: a short constant", BUDGET),
    Mutant("log2-e-is-1.4427", "exp2", "LOG2_E = math.log2(math.e)", "LOG2_E = 1.4427",
           "none public: a short constant", BUDGET),
    Mutant("exp-as-a-power", "plain", EXP, "weights = (1 + (scores - top).clamp(min=-4096.0) / 4096) ** 4096",
           "none public: the limit that defines exp", BUDGET),
    Mutant("exp-cubic-for-float32", "cubic_exp", "if query.dtype in (torch.bfloat16, torch.float16)",
           "if query.dtype != torch.float64", "none public: an approximation made for 16 bits", BUDGET),
    Mutant("exp-quadratic-for-16-bits", "cubic_exp",
           "CUBIC = (0.077119089663028717, 0.227564394474029541, 0.695146143436431885, 1.0)",
           "CUBIC = (0.0, 0.343718943, 0.657636282, 1.0)", "none public: one term too few", BUDGET),
    Mutant("exp-of-rounded-differences", "plain", EXP, "weights = torch.exp((scores - top).half().to(wide))",
           "precision-or-range/bf16-softmax", BUDGET),
)  # fmt: skip
