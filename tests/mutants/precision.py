"""Faults of rounding: formats too narrow for the call, sums kept too coarsely, weights lost."""

from mutants.house import Mutant

OUTPUT, LSE, RANGE = "accuracy.output-within-budget", "accuracy.lse-within-budget", "softmax.any-finite-score"
NARROW = "precision-or-range/bf16-softmax"
SUMS = "precision-or-range/fp16-accumulate"
QUANTISED = "precision-or-range/quantised-kv"
SCORES = "precision-or-range/masked-bf16-wrong"

SCALED = "scores = scores * scale"  # of `plain`
SUM = "output = weights @ value.to(wide)"
STORE = "output = output.to(query.dtype)"
PRODUCT = "query.to(wide) @ key.to(wide).transpose(-1, -2)"
WIDE = "wide = torch.float64 if query.dtype == torch.float64 else torch.float32"
ACC = "acc = acc * rescale + weights @ v_tile.to(wide)"  # of `tiled`
TOTAL = "total = total * rescale + weights.sum(-1, keepdim=True)"
ONCE = "weights = weights.to(query.dtype).to(wide)"

MUTANTS = (
    Mutant("weights-in-bfloat16", "plain", SUM, "output = weights.bfloat16().to(wide) @ value.to(wide)",
           NARROW, OUTPUT, "weights-in-bfloat16"),
    Mutant("weights-in-float16", "plain", SUM, "output = weights.half().to(wide) @ value.to(wide)", NARROW, OUTPUT),
    Mutant("weights-in-float8", "plain", SUM, "output = weights.to(torch.float8_e4m3fn).to(wide) @ value.to(wide)",
           QUANTISED, OUTPUT, "weights-in-float8"),
    Mutant("weights-flushed-in-float16", "tiled", ONCE,
           f"{ONCE}\n                    flushed = weights < 2**-14 if query.dtype == torch.float16 else weights < 0\n"
           "                    weights = weights.masked_fill(flushed, 0.0)",
           "none public: fast-math on half precision", OUTPUT),
    Mutant("weights-rounded-twice", "plain", SUM, "output = weights.to(query.dtype).to(wide) @ value.to(wide)",
           "none public: rounded before the division and after it", OUTPUT,
           also=(("weights = weights / total", "weights = weights.to(query.dtype).to(wide) / total"),)),
    Mutant("weights-truncated-in-bfloat16", "plain", SUM,
           "narrow = query.dtype == torch.bfloat16\n"
           "    weights = (weights.view(torch.int32) & -65536).view(wide) if narrow else weights\n"
           f"    {SUM}", "none public: the cheap conversion", OUTPUT),
    Mutant("scores-in-bfloat16", "plain", SCALED, f"scores = ({SCALED[9:]}).bfloat16().to(wide)",
           NARROW, OUTPUT, "scores-in-bfloat16"),
    Mutant("scores-in-float16", "plain", SCALED, f"scores = ({SCALED[9:]}).half().to(wide)",
           NARROW, OUTPUT, "scores-in-float16"),
    Mutant("scores-in-the-dtype", "plain", SCALED, f"scores = ({SCALED[9:]}).to(query.dtype).to(wide)", SCORES,
           "accuracy.classes"),
    Mutant("log2-e-to-six-digits", "exp2", "LOG2_E = math.log2(math.e)", "LOG2_E = 1.44269",
           "none public: a constant written out too short", "accuracy.temperature"),
    Mutant("ln-2-to-six-digits", "exp2", "torch.log2(total) / LOG2_E", "torch.log2(total) * 0.693147",
           "none public: a constant written out too short", "accuracy.lse-mean"),
    Mutant("scores-in-the-dtype-with-a-bias", "plain", "scores = scores + attn_mask.to(wide)",
           "scores = (scores.to(query.dtype) + attn_mask).to(wide)", SCORES, OUTPUT),
    Mutant("scores-in-the-dtype-beyond-512-keys", "plain", SCALED,
           f"scores = ({SCALED[9:]}).to(query.dtype if k_len > 512 else wide).to(wide)", NARROW, OUTPUT),
    Mutant("inputs-in-bfloat16", "plain", PRODUCT, PRODUCT.replace(".to(wide)", ".bfloat16().to(wide)"),
           NARROW, OUTPUT, "inputs-in-bfloat16"),
    Mutant("inputs-in-tf32", "plain", PRODUCT,
           "tf32(query.to(wide)) @ tf32(key.to(wide)).transpose(-1, -2)",
           "none public: a switch that is on by default elsewhere", OUTPUT,
           also=(("import torch\n", "import torch\n\n\ndef tf32(x):\n    fraction, exponent = torch.frexp(x)\n"
                  "    return torch.ldexp(torch.round(fraction * 2048) / 2048, exponent)\n"),)),
    Mutant("keys-in-int8", "plain", PRODUCT,
           "query.to(wide) @ eight_bits(key.to(wide)).transpose(-1, -2)", QUANTISED, OUTPUT,
           also=(("import torch\n", "import torch\n\n\ndef eight_bits(x):\n"
                  "    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127\n"
                  "    return torch.round(x / step) * step\n"),)),
    Mutant("values-in-float8", "plain", SUM, "output = weights @ value.to(wide).to(torch.float8_e5m2).to(wide)",
           QUANTISED, OUTPUT),
    Mutant("values-in-bfloat16", "plain", SUM, "output = weights @ value.bfloat16().to(wide)", NARROW, OUTPUT),
    Mutant("sums-in-bfloat16", "tiled", ACC, f"acc = ({ACC[6:]}).bfloat16().to(wide)", SUMS, OUTPUT),
    Mutant("sums-in-float16", "tiled", ACC, f"acc = ({ACC[6:]}).half().to(wide)", SUMS, OUTPUT),
    Mutant("sums-in-the-dtype", "tiled", ACC, f"acc = ({ACC[6:]}).to(query.dtype).to(wide)", SUMS, OUTPUT),
    Mutant("sums-key-by-key-in-the-dtype", "key_by_key", "acc = acc * rescale + weight * value[:, :, j : j + 1]",
           "acc = (acc * rescale + weight * value[:, :, j : j + 1]).to(query.dtype).to(wide)", SUMS, OUTPUT),
    Mutant("sums-overflow-like-float16", "tiled", ACC, f"acc = ({ACC[6:]}).clamp(-65504.0, 65504.0)",
           "precision-or-range/fp16-unnormalised-overflow", "accuracy.overflow"),
    Mutant("divisor-in-bfloat16", "tiled", TOTAL, f"total = ({TOTAL[8:]}).bfloat16().to(wide)", SUMS, OUTPUT),
    Mutant("divisor-counts-at-most-2048", "key_by_key", "total = total * rescale + weight",
           "total = (total * rescale + weight).half().to(wide)", SUMS, OUTPUT),
    Mutant("float32-inside-for-float64", "plain", WIDE, "wide = torch.float32", NARROW, "notation.dtypes",
           also=(("lse = (top + torch.log(total)).squeeze(-1)",
                  "lse = (top + torch.log(total)).squeeze(-1).to(torch.promote_types(query.dtype, wide))"),)),
    Mutant("float32-exp-for-float64", "plain", "weights = torch.exp(scores - top)",
           "weights = torch.exp((scores - top).float()).to(wide)", NARROW, OUTPUT),
    Mutant("float32-scores-for-float64", "plain", SCALED, f"scores = ({SCALED[9:]}).float().to(wide)", NARROW, OUTPUT),
    Mutant("float32-logarithm-for-float64", "plain", "lse = (top + torch.log(total)).squeeze(-1)",
           "lse = (top + torch.log(total.float()).to(wide)).squeeze(-1)", NARROW, LSE),
    Mutant("output-through-bfloat16", "plain", STORE, "output = output.bfloat16().to(query.dtype)", NARROW, OUTPUT),
    Mutant("output-through-float16", "plain", STORE, "output = output.half().to(query.dtype)",
           "precision-or-range/large-logit-nan", OUTPUT),
    Mutant("output-truncated-to-bfloat16", "plain", STORE,
           "narrow = query.dtype == torch.bfloat16\n"
           "    output = (output.view(torch.int32) & -65536).view(wide) if narrow else output\n"
           f"    {STORE}", "none public: the cheap conversion", OUTPUT),
    Mutant("output-flushed-in-float16", "plain", STORE,
           "tiny = 2.0**-14 if query.dtype == torch.float16 else 0.0\n"
           f"    output = output.masked_fill(output.abs() < tiny, 0.0)\n    {STORE}",
           "none public: fast-math on half precision", OUTPUT),
    Mutant("output-one-percent-low", "plain", STORE, f"output = output * 0.99\n    {STORE}",
           "none public: what a tolerance of 1e-2 accepts", OUTPUT),
    Mutant("output-two-to-the-minus-15-high", "plain", STORE, f"output = output * (1 + 2**-15)\n    {STORE}",
           "none public: what a tolerance of 1e-4 accepts", OUTPUT),
)  # fmt: skip
