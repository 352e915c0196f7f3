"""Faults of grouped heads and of batches: which key head and which batch element a query reads."""

from mutants.house import Mutant

MAP, QUERY, DIVIDE = "grouped.head-map", "grouped.multi-query", "grouped.heads-divide"
ORDER = "gqa-heads/gqa-head-order"
KEY = "key = key.repeat_interleave(group, dim=1)"  # of `plain`
VALUE = "value = value.repeat_interleave(group, dim=1)"
PICK = "key[b, h // group], value[b, h // group]"  # of `tiled`
REFUSAL = "if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:"

MUTANTS = (
    Mutant(
        "heads-tiled", "plain", KEY, "key = key.repeat(1, group, 1, 1)", ORDER, MAP, "heads-tiled",
        also=((VALUE, "value = value.repeat(1, group, 1, 1)"),),
    ),
    Mutant("heads-tiled-by-modulo", "tiled", PICK, PICK.replace("h // group", "h % key.shape[1]"),
           ORDER, MAP, "heads-tiled"),
    Mutant("value-heads-tiled", "plain", VALUE, "value = value.repeat(1, group, 1, 1)", ORDER, MAP),
    Mutant("key-heads-tiled", "plain", KEY, "key = key.repeat(1, group, 1, 1)", ORDER, MAP),
    Mutant(
        "heads-all-read-0", "plain", KEY, "key = key[:, :1].expand(-1, query.shape[1], -1, -1)",
        ORDER, MAP, "heads-all-read-0",
        also=((VALUE, "value = value[:, :1].expand(-1, query.shape[1], -1, -1)"),),
    ),
    Mutant("heads-beyond-the-second-wrap", "tiled", PICK,
           PICK.replace("h // group", "(h // group) % min(key.shape[1], 2)"), ORDER, MAP),
    Mutant("group-of-two-assumed", "tiled", PICK,
           PICK.replace("h // group", "(h // min(group, 2)) % key.shape[1]"), ORDER, MAP),
    Mutant("group-off-by-one-head", "tiled", PICK, PICK.replace("h // group",
           "(h + (group > 2)) // group % key.shape[1]"),
           ORDER, MAP),
    Mutant("multi-query-rotates-queries", "grouped_rows", "rows = wide(query).reshape",
           "query = query.roll(1, 1) if kv_heads == 1 < heads else query\n    rows = wide(query).reshape",
           "none public: the one key head is right for every query head, so only the queries can be", QUERY),
    Mutant(
        "multi-query-shares-a-mask", "grouped_rows", "weights, lse = softmax(hide(scores, attn_mask, is_causal))",
        "if attn_mask is not None and kv_heads == 1:\n"
        "        attn_mask = attn_mask.expand(scores.shape)[:, :1]\n"
        "    weights, lse = softmax(hide(scores, attn_mask, is_causal))",
        "gqa-heads/gqa-mask-oob", QUERY, "mask-of-head-0",
    ),
    Mutant(
        "mask-by-key-head", "tiled", "tile_mask = attn_mask[b, h]", "tile_mask = attn_mask[b, h // group]",
        "gqa-heads/gqa-mask-oob", MAP,
    ),
    Mutant(
        "heads-rounded-to-a-group", "plain", KEY,
        "group = -(-query.shape[1] // key.shape[1])\n"
        "    key = key.repeat_interleave(group, dim=1)[:, : query.shape[1]]",
        "validation-or-degenerate/heads-not-a-multiple", DIVIDE,
        also=((VALUE, f"{VALUE}[:, : query.shape[1]]"), (f"{REFUSAL}", "if key.shape[0] not in (1, query.shape[0]):")),
    ),
    Mutant(
        "more-value-heads-are-cut", "tiled", "key.shape[:3] == value.shape[:3]",
        "key.shape[::2] == value.shape[::2] and key.shape[1] <= value.shape[1]",
        "validation-or-degenerate/len-k-ne-len-v", DIVIDE,
    ),
    Mutant(
        "batch-0-keys", "tiled", PICK, PICK.replace("[b,", "[0,"),
        "none public: a batch index left out", "attention.output", "batch-0-keys",
    ),
    Mutant(
        "batch-0-values", "tiled", PICK, "key[b, h // group], value[0, h // group]",
        "none public: a batch index left out", "attention.output",
    ),
    Mutant(
        "broadcast-values-reach-batch-0-only", "plain", "    value = value.repeat_interleave(group, dim=1)\n",
        "    value = value.repeat_interleave(group, dim=1)\n"
        "    if len(value) < len(query):\n"
        "        value = torch.cat([value, torch.zeros_like(value).expand(len(query) - 1, -1, -1, -1)])\n",
        "none public: an expand that allocates", "attention.kv-broadcast",
    ),
    Mutant(
        "batch-and-heads-swapped-where-equal", "plain", KEY,
        f"if query.shape[0] == query.shape[1] == key.shape[1]:\n        key = key.transpose(0, 1)\n    {KEY}",
        "none public: a transpose that only unequal sizes show", "attention.output",
    ),
    Mutant(
        "more-key-batches-are-cut", "tiled", "if key.shape[0] not in (1, query.shape[0])",
        "if 1 < key.shape[0] < query.shape[0]",
        "none public: batch entries beyond the query's are left out", "notation.shapes",
        also=(("key = key.expand(", "key = key[:batch].expand("),
              ("value = value.expand(", "value = value[:batch].expand(")),
    ),
    Mutant(
        "more-keys-than-values-are-cut", "tiled", "key.shape[:3] == value.shape[:3]",
        "key.shape[:2] == value.shape[:2]",
        "validation-or-degenerate/len-k-ne-len-v", "notation.shapes",
    ),
)  # fmt: skip
