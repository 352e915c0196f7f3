"""Faults of context parallelism."""

from mutants.house import Mutant

NONE = "none public: the survey has no report of context parallelism"
MERGED, POSITIONS, ORDER, BACK, COVER = (
    f"context-parallel.{name}" for name in ("merge", "positions", "order", "backward", "cover")
)
GAP = "flash.merge-gap"
RING, GATHER = "forms/context_parallel", "forms/context_parallel_gather"

SHARES = "old, new = torch.exp(lse - reach), torch.exp(part_lse - reach)"
SEES = "visible = visible & (columns <= rows[:, None] + corner)"
MASK = "visible = mask[:, :, rows][..., columns]"
GATHERED = "visible = columns <= rows[:, None] + corner if is_causal"
MASKED = "visible = visible & attn_mask[:, :, rows][..., columns]"
COPY = "output = output.index_copy(2, rows, o)"
LSE_COPY = "lse = lse.index_copy(2, rows, z)"
KEPT = "o, z = of_part if o is None else merged(o, z, *of_part)"
RETURNS = "return torch.cat(outputs, 2)[:, :, back], torch.cat(lses, 2)[:, :, back]"
WEIGHTS = "weights = torch.exp(scores - lse[..., None])"
DELTA = "delta = (flow * output).sum(-1, keepdim=True) - grad_lse[..., None]"
EACH_ONCE = "if not shards or sorted(torch.cat(list(shards)).tolist()) != list(range(length)):"
HELD = "if len(held) != length or not torch.equal(held.sort().values, torch.arange(length)):"
TAKEN = "query[:, :, rows], key[:, :, columns], value[:, :, columns], visible"

MUTANTS = (
    Mutant("ring-keeps-the-last-part", RING, KEPT, "o, z = of_part", NONE, MERGED),
    Mutant("ring-adds-the-parts", RING, SHARES, f"{SHARES}\n    old, new = old * 0 + 1, new * 0 + 1", NONE, MERGED),
    Mutant("ring-means-the-parts", RING, SHARES, f"{SHARES}\n    old, new = old * 0 + 0.5, new * 0 + 0.5", NONE,
           MERGED),
    Mutant("ring-shares-swapped", RING, SHARES, "new, old = torch.exp(lse - reach), torch.exp(part_lse - reach)",
           NONE, MERGED),
    Mutant("ring-lse-of-the-last-part", RING, "part_output, both", "part_output, part_lse", NONE, MERGED),
    Mutant("ring-lse-is-the-larger", RING, "both = torch.logaddexp(lse, part_lse)",
           "both = torch.maximum(lse, part_lse)", NONE, MERGED),
    Mutant("ring-nan-where-nothing-is-seen", RING, "both.masked_fill(both == -torch.inf, 0.0)", "both", NONE, MERGED),
    Mutant("ring-drops-the-last-shard-to-arrive", RING, "for columns in key_shards:",
           "for columns in key_shards[: max(len(key_shards) - 1, 1)]:", NONE, MERGED),
    Mutant("ring-merges-in-bfloat16", RING, SHARES,
           f"{SHARES}\n    old, new = old.bfloat16().to(old.dtype), new.bfloat16().to(new.dtype)", NONE, MERGED),
    Mutant("ring-without-a-maximum", RING, SHARES,
           "old, new = torch.exp(lse) / torch.exp(reach), torch.exp(part_lse) / torch.exp(reach)", NONE, GAP),
    Mutant("ring-starts-from-an-lse-of-0", RING, "o, z = None, None",
           "o, z = q.new_zeros(*q.shape[:3], value.shape[-1]), q.new_zeros(q.shape[:3])", NONE, MERGED),
    Mutant("ring-causal-by-place-in-the-shard", RING, SEES,
           "visible = visible & (torch.arange(len(columns)) <= torch.arange(len(rows))[:, None] + corner)", NONE,
           POSITIONS),
    Mutant("ring-causal-by-contiguous-chunks", RING, SEES,
           "place = lambda held, shards: sum(len(x) for x in shards[: next(i for i, x in enumerate(shards)"
           " if x is held)])\n"
           "                visible = visible & (torch.arange(len(columns)) + place(columns, key_shards)"
           " <= torch.arange(len(rows))[:, None] + place(rows, query_shards) + corner)", NONE, POSITIONS),
    Mutant("ring-causal-one-late", RING, SEES, SEES.replace("<=", "<"), NONE, POSITIONS),
    Mutant("ring-causal-corner-of-the-part", RING, SEES,
           SEES.replace("corner", "(len(columns) - len(rows) if corner else 0)"), NONE, POSITIONS),
    Mutant("ring-causal-only-on-its-own-shard", RING, SEES,
           "visible = visible & ((columns <= rows[:, None] + corner) | (len(columns) != len(rows)))", NONE, POSITIONS),
    Mutant("ring-corner-ignored", RING, 'corner = k_len - q_len if causal_alignment == "lower_right" else 0',
           "corner = 0", NONE, POSITIONS),
    Mutant("ring-mask-of-the-first-keys", RING, MASK, "visible = mask[:, :, rows][..., : len(columns)]", NONE,
           POSITIONS),
    Mutant("ring-mask-of-the-first-rows", RING, MASK, "visible = mask[:, :, : len(rows)][..., columns]", NONE,
           POSITIONS),
    Mutant("ring-mask-dropped", RING, MASK, "visible = torch.ones(1, 1, len(rows), len(columns), dtype=torch.bool)",
           NONE, POSITIONS),
    Mutant("gather-causal-in-the-order-of-arrival", GATHER, GATHERED,
           "visible = torch.arange(k_len) <= rows[:, None] + corner if is_causal", NONE, POSITIONS),
    Mutant("gather-mask-in-the-order-of-arrival", GATHER, MASKED, MASKED.replace("[..., columns]", ""), NONE,
           POSITIONS),
    Mutant("ring-rows-in-the-order-of-the-shards", RING, COPY, "output = torch.cat([output[:, :, len(rows):], o], 2)",
           NONE, ORDER),
    Mutant("ring-lse-in-the-order-of-the-shards", RING, LSE_COPY, "lse = torch.cat([lse[:, :, len(rows):], z], 2)",
           NONE, ORDER),
    Mutant("gather-rows-in-the-order-of-the-shards", GATHER, RETURNS,
           "return torch.cat(outputs, 2), torch.cat(lses, 2)[:, :, back]", NONE, ORDER),
    Mutant("gather-lse-in-the-order-of-the-shards", GATHER, RETURNS,
           "return torch.cat(outputs, 2)[:, :, back], torch.cat(lses, 2)", NONE, ORDER),
    Mutant("gather-rows-put-the-wrong-way-round", GATHER, '"query_shards").argsort()', '"query_shards")', NONE, ORDER),
    Mutant("gather-values-not-dealt", GATHER, TAKEN, TAKEN.replace("value[:, :, columns]", "value"), NONE, ORDER),
    Mutant("ring-no-gradient-through-the-shares", RING, SHARES,
           f"{SHARES}\n    old, new = old.detach(), new.detach()", NONE, BACK),
    Mutant("ring-no-gradient-through-earlier-parts", RING, KEPT,
           "o, z = of_part if o is None else merged(o.detach(), z, *of_part)", NONE, BACK),
    Mutant("ring-no-gradient-through-the-lse", RING, "return output.to(query.dtype), lse",
           "return output.to(query.dtype), lse.detach() + 0 * output.sum(-1)", NONE, BACK),
    Mutant("gather-backward-normalises-again", GATHER, WEIGHTS,
           f"{WEIGHTS}\n        weights = weights / weights.detach().sum(-1, keepdim=True)"
           ".clamp(min=1e-30) * (lse[..., None] > -100)", NONE, BACK),
    Mutant("gather-backward-without-delta", GATHER, DELTA, "delta = 0 * flow.sum(-1, keepdim=True)", NONE, BACK),
    Mutant("gather-backward-without-grad-lse", GATHER, DELTA, DELTA.replace(" - grad_lse[..., None]", ""), NONE, BACK),
    Mutant("gather-backward-takes-one-reader-of-a-key", GATHER, "group, k_len, dim).sum(2)",
           "group, k_len, dim)[:, :, 0]", NONE, BACK),
    Mutant("ring-takes-a-key-twice", RING, "    checked(key_shards, k_len)\n", "", NONE, COVER),
    Mutant("ring-takes-a-query-twice", RING, "    checked(query_shards, q_len)\n", "", NONE, COVER),
    Mutant("gather-counts-positions-only", GATHER, HELD, "if len(held) != length or held.max() >= length:", NONE,
           COVER),
    Mutant("gather-looks-at-the-sum-of-positions", GATHER, HELD,
           "if held.sum() != length * (length - 1) // 2 or held.min() < 0:", NONE, COVER),
    Mutant("gather-clamps-positions-beyond", GATHER, HELD,
           "if len(held) != length or len(held.unique()) != length or held.min() < 0:", NONE, COVER,
           also=(("    return held\n", "    return held.clamp(max=length - 1)\n"),)),
    Mutant("ring-takes-negative-positions", RING, EACH_ONCE,
           "if not shards or sorted(torch.cat(list(shards)).remainder(length).tolist()) != list(range(length)):", NONE,
           COVER),
)  # fmt: skip
