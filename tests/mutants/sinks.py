"""Faults of sinks: dropped, twice, of the wrong head, in the wrong unit, out of the maximum, without gradient."""

from mutants.house import Mutant

SENTINEL = "softmax-max-or-sentinel"
DOUBLE, EMPTY_TILE = f"{SENTINEL}/sink-double-count", f"{SENTINEL}/sink-with-empty-tile"
IGNORED = "scale-softcap-bias/silently-ignored-argument"
LOST = "none public: a gradient left out"
WEIGHT, ANY_SIZE, LSE, EMPTY, GRADIENT, SHAPE = (
    f"sinks.{name}" for name in ("weight", "any-size", "lse", "empty-row", "gradient", "shape")
)

SINK = "sink = sinks.to(wide)[:, None, None]"  # of `sinks_flash`
TOTAL = "total = total * rescale + torch.exp(sink - safe)"
NEW_TOP = "new_top = torch.maximum(top, sink)"
LOG = "lse = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)"
DSINKS = "dsinks = (p * -delta).sum((0, 2)).to(sinks.dtype)"
P = "p = torch.exp(sinks.to(wide)[:, None] - lse)"
COLUMN = "column = wide(sinks)[None, :, None, None].expand(*scores.shape[:3], 1)"  # of `sinks_column`
DROP = "weights = weights[..., :-1]"
SOFTMAX = "weights, lse = softmax(part)"  # of `sinks_split_kv`
GIVEN = "        if sinks.shape != query.shape[1:2]:\n"

MUTANTS = (
    Mutant("sink-ignored", "sinks_flash", TOTAL, "total = total * rescale", IGNORED, WEIGHT, "sink-dropped"),
    Mutant("sink-ignored-with-causal", "sinks_flash", "if sinks is not None:\n            sink",
           "if sinks is not None and not is_causal:\n            sink", IGNORED, WEIGHT),
    Mutant("sink-ignored-with-mask", "sinks_flash", "if sinks is not None:\n            sink",
           "if sinks is not None and attn_mask is None:\n            sink", IGNORED, WEIGHT),
    Mutant("sink-twice", "sinks_flash", TOTAL, "total = total * rescale + 2 * torch.exp(sink - safe)", DOUBLE, WEIGHT,
           "sink-twice"),
    Mutant("sink-in-every-split", "sinks_split_kv", SOFTMAX,
           "column = scores.new_full((*part.shape[:3], 1), -torch.inf) if "
           "sinks is None else wide(sinks)[:, None, None].expand(*part.shape[:3], 1)\n        weights, lse = "
           "softmax(torch.cat([part, column], -1))\n        weights = weights[..., :-1]", DOUBLE, WEIGHT),
    Mutant("sink-of-head-0", "sinks_flash", SINK, f"{SINK}[:1]", "none public: one sink for all heads", WEIGHT,
           "sink-of-head-0"),
    Mutant("sink-of-key-head", "sinks_flash", SINK, "group = query.shape[1] // key.shape[1]\n            sink = "
           "sinks[torch.arange(query.shape[1]) // group].to(wide)[:, None, None]", "gqa-heads/gqa-head-order", WEIGHT,
           "sink-of-key-head"),
    Mutant("sink-by-row", "sinks_flash", SINK, "sink = sinks[torch.arange(q.shape[2]) % len(sinks)].to(wide)[:, None]",
           "none public: a sink indexed by row", WEIGHT),
    Mutant("sink-by-batch", "sinks_flash", SINK,
           "sink = sinks[(torch.arange(q.shape[0])[:, None] + torch.arange(q.shape[1])) "
           "% len(sinks)].to(wide)[..., None, None]", "none public: a sink indexed by batch and head", WEIGHT),
    Mutant("sink-scaled", "sinks_flash", SINK, f"{SINK} * scale", "none public: a sink in the unit of raw scores",
           WEIGHT,
           "sink-scaled"),
    Mutant("sink-in-base-2", "sinks_flash", "torch.exp(sink - safe)", "torch.exp2(sink - safe)",
           "lse-or-split-merge/lse-wrong-base", WEIGHT),
    Mutant("sink-negated", "sinks_flash", SINK, "sink = -sinks.to(wide)[:, None, None]", "none public: a sign", WEIGHT,
           "sink-negated"),
    Mutant("sink-has-a-value", "sinks_column", DROP, "v = torch.cat([v, v[:, :, -1:]], 2)",
           "none public: the sink keeps its "
           "column", WEIGHT),
    Mutant("sink-renormalised-away", "sinks_column", DROP, f"{DROP}\n        weights = weights / weights.sum(-1, "
           "keepdim=True).clamp(min=1e-30)", "none public: weights made to add up to 1", WEIGHT),
    Mutant("sink-hidden-by-causal", "sinks_column", COLUMN, f"{COLUMN}\n        if is_causal:\n            late = "
           "torch.arange(scores.shape[2])[:, None] >= scores.shape[3]\n            column = column.masked_fill(~late, "
           "-torch.inf)", "none public: the triangle hides the column of the sink", WEIGHT),
    Mutant("sink-not-in-the-maximum", "sinks_flash", NEW_TOP, "new_top = top", EMPTY_TILE, ANY_SIZE),
    Mutant("sink-against-a-placeholder-maximum", "sinks_flash", NEW_TOP, "new_top = top.clamp(min=-20.0)", EMPTY_TILE,
           ANY_SIZE),
    Mutant("sink-capped", "sinks_flash", SINK, f"{SINK}.clamp(max=10.0)", "none public: a sink cut off", ANY_SIZE),
    Mutant("sink-below-0-dropped", "sinks_flash", SINK, f"{SINK}\n            sink = sink.masked_fill(sink < -10.0, "
           "-torch.inf)", "none public: a low sink taken for none", ANY_SIZE),
    Mutant("sink-missing-from-the-lse", "sinks_flash", LOG,
           "kept = total if sinks is None else total - torch.exp(sink - "
           "safe)\n        lse = (top + torch.log(kept)).masked_fill(kept == 0, -torch.inf).squeeze(-1)",
           "none public: an lse without the sink", LSE, "sink-not-in-lse"),
    Mutant("sink-leaves-an-empty-row-without-lse", "sinks_flash", LOG,
           "lse = (top + torch.log(total)).masked_fill(empty | "
           "(acc == 0).all(-1, keepdim=True), -torch.inf).squeeze(-1)", "none public: an lse without the sink", LSE),
    Mutant("sink-makes-an-empty-row-nan", "sinks_flash", "acc = acc * rescale\n",
           "acc = acc * rescale.masked_fill(top == -torch.inf, torch.nan)\n", "fully-masked-row/fully-masked-row-nan",
           EMPTY),
    Mutant("sink-gives-an-empty-row-a-mean", "sinks_flash",
           "output = (acc / total.masked_fill(empty, 1.0)).to(query.dtype)",
           "hidden = (acc == 0).all(-1, keepdim=True)\n        output = torch.where(hidden, "
           "v.mean(2, keepdim=True) if v.shape[2] else 0.0, acc / total.masked_fill(empty, 1.0)).to(query.dtype)",
           "fully-masked-row/fully-masked-row-garbage", EMPTY),
    Mutant("sink-gradient-missing", "sinks_flash", DSINKS, "dsinks = torch.zeros_like(sinks)", LOST, GRADIENT,
           "grad-sinks-zero"),
    Mutant("sink-gradient-negated", "sinks_flash", DSINKS, "dsinks = (p * delta).sum((0, 2)).to(sinks.dtype)",
           "none public: a sign", GRADIENT, "grad-sinks-negated"),
    Mutant("sink-gradient-of-the-last-batch", "sinks_flash", DSINKS,
           "dsinks = (p * -delta)[-1].sum(-1).to(sinks.dtype)",
           "backward/dbias-broadcast-last-writer", GRADIENT, "grad-sinks-of-one-batch"),
    Mutant("sink-gradient-of-the-last-row", "sinks_flash", DSINKS,
           "dsinks = (p * -delta)[..., -1].sum(0).to(sinks.dtype)",
           "backward/dbias-broadcast-last-writer", GRADIENT, "grad-sinks-of-one-row"),
    Mutant("sink-gradient-without-that-of-the-lse", "sinks_flash", DSINKS,
           "dsinks = (p * -(do * output.to(wide)).sum(-1))"
           ".sum((0, 2)).to(sinks.dtype)", "none public: a gradient left out", GRADIENT, "grad-sinks-without-lse"),
    Mutant("sink-gradient-from-the-lse-without-it", "sinks_flash", P,
           "z = sinks.to(wide)[:, None]\n            p = torch.exp(z - "
           "lse) / (1 - torch.exp(z - lse)).clamp(min=1e-6)", "backward/fwd-bwd-mask-mismatch", GRADIENT,
           "grad-sinks-against-the-keys"),
    Mutant("sink-gradient-missing-for-empty-rows", "sinks_flash", P, f"{P} * (output != 0).any(-1)",
           "none public: a gradient left out", GRADIENT),
    Mutant("sink-left-out-of-the-weights-of-the-backward", "sinks_flash",
           "guarded = lse.masked_fill(lse == -torch.inf, torch.inf)"
           "[..., None]", "bare = lse if sinks is None else lse + torch.log1p(-torch.exp(sinks.to(wide)[:, None] - lse)"
           ".clamp(max=0.999))\n        guarded = bare.masked_fill(bare == -torch.inf, torch.inf)[..., None]",
           "backward/fwd-bwd-mask-mismatch", "backward.value"),
    Mutant("sinks-broadcast", "sinks_column",
           GIVEN + "            raise ValueError(\"sinks must hold one number a query head\")\n",
           "", "none public: one sink is spread over all heads", SHAPE,
           also=((COLUMN, "column = wide(sinks).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)"),)),
)  # fmt: skip
