"""Faults of dropout: where it acts, the factor, the draws, the backward pass, and the ends of the range of p."""

from mutants.house import Mutant

KIND = "none public: the survey has no dropout"
INVERTED, ON_WEIGHTS, RATE, SEED, BACKWARD = (
    "dropout.inverted", "dropout.on-weights", "dropout.rate", "dropout.seed", "dropout.backward-mask",
)  # fmt: skip

FACTOR = "(1 / (1 - p) if p < 1 else 0.0)"  # of `dropped`
KEEP = "keep = torch.rand(like.shape) >= p"
DROP = "            weights = weights * factors(weights, p)\n"
SOFTMAX = "        weights, lse = softmax(scores)\n"
OUTPUT = "        output = weights @ value\n"
RESTORE = "torch.set_rng_state(state)"
RANGE = "if not 0 <= dropout_p <= 1:"
IF = "        if p > 0:\n            weights ="

STREAM = "manual_seed(seed + number)"  # of `dropped_tiles`
SUM = "total = total * rescale + weights.sum(-1, keepdim=True)"


def drawn(shape: str) -> str:
    """The draw for weights of a smaller shape, broadcast."""
    return f"keep = (torch.rand({shape}) >= p).expand(like.shape)"


MUTANTS = (
    Mutant("dropout-not-scaled-up", "dropped", FACTOR, "1.0", KIND, INVERTED),
    Mutant("dropout-divided-by-p", "dropped", FACTOR, "(1 / p)", KIND, INVERTED),
    Mutant("dropout-scaled-twice", "dropped_tiles", "factor = 1 / (1 - dropout_p)", "factor = (1 - dropout_p) ** -2",
           KIND, INVERTED),
    Mutant("dropout-renormalised", "dropped", DROP, f"{DROP}            weights = weights / weights.sum(-1, "
           "keepdim=True).clamp(min=1e-30)\n", KIND, INVERTED),
    Mutant("dropout-on-scores", "dropped", SOFTMAX + IF + DROP.partition("weights =")[2],
           f"        if p > 0:\n            scores = scores * factors(scores, p).clamp(min=1e-30)\n{SOFTMAX}",
           KIND, ON_WEIGHTS),
    Mutant("dropout-hides-scores", "dropped", SOFTMAX + IF + DROP.partition("weights =")[2],
           "        if p > 0:\n            scores = scores + factors(scores, p).log()\n" + SOFTMAX,
           KIND, ON_WEIGHTS),
    Mutant("dropout-on-the-output", "dropped", DROP + "        ctx.save", "            pass\n        ctx.save", KIND,
           ON_WEIGHTS, also=((OUTPUT, f"{OUTPUT}        output = output * factors(output, p)\n"),)),
    Mutant("dropout-same-in-all-heads", "dropped", KEEP, drawn("like.shape[0], 1, *like.shape[2:]"), KIND, SEED),
    Mutant("dropout-same-in-all-batches", "dropped", KEEP, drawn("like.shape[1:]"), KIND, SEED),
    Mutant("dropout-same-in-all-rows", "dropped", KEEP, drawn("*like.shape[:2], 1, like.shape[3]"), KIND, SEED),
    Mutant("dropout-same-for-all-keys", "dropped", KEEP, drawn("*like.shape[:3], 1"), KIND, SEED),
    Mutant("dropout-same-in-all-tiles", "dropped_tiles", STREAM, "manual_seed(seed)", KIND, RATE),
    Mutant("dropout-keeps-with-p", "dropped", KEEP, "keep = torch.rand(like.shape) < p", KIND, RATE),
    Mutant("dropout-rate-off-by-a-tenth", "dropped", KEEP, "keep = torch.rand(like.shape) >= 1.1 * p", KIND, RATE),
    Mutant("dropout-first-key-always-kept", "dropped", KEEP, f"{KEEP}\n    keep[..., :1] = True", KIND, RATE),
    Mutant("dropout-no-draw-for-odd-keys", "dropped", KEEP, f"{KEEP}\n    keep[..., 1::2] = True", KIND, RATE),
    Mutant("dropout-neighbours-in-pairs", "dropped", KEEP,
           f"{KEEP}\n    keep[..., 1::2] = keep[..., : keep.shape[-1] - 1 : 2]", KIND, RATE),
    Mutant("dropout-draws-again-in-the-backward", "dropped", RESTORE, "torch.rand(1)", KIND, BACKWARD),
    Mutant("dropout-no-mask-in-the-backward", "dropped", "drop = factors(weights, p)", "pass", KIND, BACKWARD),
    Mutant("dropout-no-factor-in-the-backward", "dropped", "drop = factors(weights, p)",
           "drop = (factors(weights, p) > 0).to(weights.dtype)", KIND, BACKWARD),
    Mutant("dropout-mask-missing-in-the-gradient-of-scores", "dropped", "grad_weights = grad_weights * drop",
           "grad_weights = grad_weights * 1.0", KIND, BACKWARD),
    Mutant("dropout-mask-missing-in-the-gradient-of-values", "dropped", "(weights * drop).transpose",
           "(weights * 1.0).transpose", KIND, "backward.dropout"),
    Mutant("dropout-seed-ignored", "dropped_tiles", "int(torch.randint(2**48, ()))", "42", KIND, SEED),
    Mutant("dropout-seed-from-the-clock", "dropped_tiles", "int(torch.randint(2**48, ()))",
           "__import__('time').perf_counter_ns()", KIND, SEED),
    Mutant("dropout-of-p-0-draws", "dropped", "output, lse = Dropped.apply(",
           "dropout_p = max(dropout_p, 0.05)\n    output, lse = Dropped.apply(", KIND, "dropout.zero"),
    Mutant("dropout-of-p-1-is-nan", "dropped", FACTOR, "(1 / torch.tensor(1 - p))", KIND, "dropout.one"),
    Mutant("dropout-of-p-1-is-none", "dropped", "output, lse = Dropped.apply(",
           "dropout_p = dropout_p % 1\n    output, lse = Dropped.apply(", KIND, "dropout.one"),
    Mutant("dropout-range-unchecked", "dropped", RANGE, "if False:", KIND, "dropout.range"),
    Mutant("dropout-of-nan-is-none", "dropped", RANGE, "if dropout_p < 0 or dropout_p > 1:", KIND, "dropout.range"),
    Mutant("dropout-in-the-lse", "dropped_tiles", f"        {SUM}\n", "", KIND, "dropout.lse",
           also=(("        acc = acc * rescale", f"        {SUM}\n        acc = acc * rescale"),)),
    Mutant("dropout-rate-grows-along-the-keys", "dropped", KEEP,
           "keep = torch.rand(like.shape) >= p * torch.linspace(0.9, 1.1, like.shape[-1])", KIND, RATE),
    Mutant("dropout-keeps-the-largest", "dropped", KEEP,
           "keep = (torch.rand(like.shape) >= p) | (like == like.amax(-1, keepdim=True))", KIND, "dropout.unbiased"),
    Mutant("dropout-reseeded-in-the-backward", "dropped", RESTORE, "torch.manual_seed(torch.initial_seed())",
           KIND, BACKWARD, also=(("            with torch.random.fork_rng(devices=[]):", "            if True:"),)),
    Mutant("dropout-repeats-after-64-keys", "dropped", KEEP,
           f"{KEEP}\n    keep = torch.cat([part[..., :64] for part in [keep[..., :64]] * -(-keep.shape[-1] // 64)], -1)"
           "[..., : like.shape[-1]]", KIND, RATE),
    Mutant("dropout-small-p-is-none", "dropped", IF, IF.replace("p > 0", "p >= 0.09"), KIND, RATE),
)  # fmt: skip
