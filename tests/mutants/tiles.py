"""Faults at the edges of tiles: lengths and head dims that are no multiple, memory past the end, wide offsets."""

from mutants.house import Mutant

OUTPUT, WEIGHTS, WRITTEN, VALUE_DIM, TILES = (
    "attention.output", "softmax.weights", "contract.output-written", "attention.value-dim", "flash.tile-independent",
)  # fmt: skip
TAIL = "tail-tile-or-block-multiple/tail-tile-not-masked"
UNWRITTEN = "tail-tile-or-block-multiple/tail-tile-uninitialised"
LENGTHS = "tail-tile-or-block-multiple/qlen-ne-klen"
DIM = "tail-tile-or-block-multiple/head-dim-hard-coded"

VISIBLE = "visible = torch.ones(q_len, k_len, dtype=torch.bool)"  # of `plain`
PRODUCT = "query.to(wide) @ key.to(wide).transpose(-1, -2)"
SUM = "output = weights @ value.to(wide)"
LOOP = "range(0, stop, K_TILE)"  # of `tiled`
KEYS = "torch.arange(start, min(start + K_TILE, k_len))"
BUFFER = "query.new_full((batch, heads, q_len, value_dim), torch.nan)"
GUARD = "    scores = scores.masked_fill(keys >= k_len, -torch.inf)\n"  # of `padded`

MUTANTS = (
    Mutant("tail-keys-dropped", "tiled", LOOP, "range(0, stop - K_TILE + 1, K_TILE)", TAIL, OUTPUT, "tail-dropped"),
    Mutant("tail-keys-dropped-after-a-whole-tile", "tiled", LOOP,
           "range(0, max(stop // K_TILE * K_TILE, 1) if stop else 0, K_TILE)", TAIL, TILES, "tail-dropped"),
    Mutant("tail-of-one-key-dropped", "tiled", LOOP, "range(0, stop - (stop > 1 and stop % K_TILE == 1), K_TILE)",
           TAIL, OUTPUT, "tail-dropped"),
    Mutant("last-key-dropped", "plain", VISIBLE, f"{VISIBLE}\n    visible[:, -1:] = k_len == 1",
           TAIL, OUTPUT, "last-key-dropped"),
    Mutant("first-key-dropped", "plain", VISIBLE, f"{VISIBLE}\n    visible[:, :1] = k_len == 1",
           "none public: an index from 1", OUTPUT, "first-key-dropped"),
    Mutant("key-127-dropped", "plain", VISIBLE, f"{VISIBLE}\n    visible[:, 127:128] = False",
           "none public: the last key of a tile of 128", OUTPUT),
    Mutant("tail-keys-scored-0", "padded", GUARD, "", TAIL, WEIGHTS, "tail-scored-0"),
    Mutant("tail-keys-scored-0-in-the-maximum", "padded", GUARD, "",
           "tail-tile-or-block-multiple/tail-tile-not-masked", "softmax.any-finite-score",
           also=(("weights = torch.exp(scores - top)",
                  "weights = torch.exp(scores - top).masked_fill(keys >= k_len, 0.0)"),)),
    Mutant("tail-keys-scored-0-for-one-query", "padded", GUARD, f"    if q_len > 1:\n    {GUARD}",
           TAIL, WEIGHTS),
    Mutant("tail-keys-are-the-last-one-again", "tiled", KEYS,
           "torch.arange(start, start + K_TILE).clamp(max=k_len - 1)",
           TAIL, WEIGHTS),
    Mutant("tail-keys-wrap-to-the-first", "tiled", KEYS, "torch.arange(start, start + K_TILE) % k_len", TAIL, WEIGHTS),
    Mutant("tiles-overlap-by-one-key", "tiled", LOOP, "range(0, stop, K_TILE - 1)",
           "none public: a stride that is not the size", WEIGHTS),
    Mutant("keys-as-many-as-queries", "tiled", "if is_causal else k_len", "if is_causal else min(k_len, q_len)",
           LENGTHS, OUTPUT),
    Mutant("keys-at-most-128", "tiled", "if is_causal else k_len", "if is_causal else min(k_len, 128)",
           "none public: a context of fixed size", OUTPUT),
    Mutant("keys-at-most-1024", "tiled", "if is_causal else k_len", "if is_causal else min(k_len, 1024)",
           "none public: a context of fixed size", OUTPUT),
    Mutant("tail-rows-unwritten", "tiled", "range(0, q_len, Q_TILE)", "range(0, max(q_len - Q_TILE + 1, 1), Q_TILE)",
           UNWRITTEN, WRITTEN),
    Mutant("tail-rows-left-0", "tiled", "range(0, q_len, Q_TILE)", "range(0, max(q_len - Q_TILE + 1, 1), Q_TILE)",
           UNWRITTEN, OUTPUT, also=((BUFFER, "query.new_zeros((batch, heads, q_len, value_dim))"),)),
    Mutant("tail-rows-left-in-dirty-memory", "tiled", "range(0, q_len, Q_TILE)",
           "range(0, max(q_len - Q_TILE + 1, 1), Q_TILE)",
           UNWRITTEN, WRITTEN, also=((BUFFER, "query.new_empty((batch, heads, q_len, value_dim))"),)),
    Mutant("empty-rows-left-in-dirty-memory", "tiled",
           "output[b, h, rows] = (acc / total.masked_fill(empty, 1.0)).to(query.dtype)",
           "seen = ~empty.squeeze(-1)\n"
           "                output[b, h, rows[seen]] = (acc / total)[seen].to(query.dtype)",
           "fully-masked-row/fully-masked-row-garbage", "mask.fully-masked-row",
           also=((BUFFER, "query.new_empty((batch, heads, q_len, value_dim))"),)),
    Mutant("output-rows-of-a-tile-reversed", "tiled", "output[b, h, rows] =", "output[b, h, rows.flip(0)] =",
           "tail-tile-or-block-multiple/output-permuted", OUTPUT),
    Mutant("output-heads-reversed", "tiled", "output[b, h, rows] =", "output[b, heads - 1 - h, rows] =",
           "tail-tile-or-block-multiple/output-permuted", OUTPUT),
    Mutant("head-dim-tail-dropped", "plain", PRODUCT,
           "query.to(wide)[..., : max(head_dim // 8 * 8, 1)] @ key.to(wide)[..., : max(head_dim // 8 * 8, 1)].mT",
           DIM, OUTPUT, "head-dim-tail-dropped"),
    Mutant("head-dim-first-64-only", "plain", PRODUCT, "query.to(wide)[..., :64] @ key.to(wide)[..., :64].mT",
           DIM, OUTPUT),
    Mutant("head-dim-last-element-of-query-twice", "plain", PRODUCT,
           "query.to(wide) @ key.to(wide).mT + query.to(wide)[..., -1:] @ key.to(wide)[..., -1:].mT * (head_dim % 2)",
           DIM, OUTPUT),
    Mutant("value-dim-tail-left-0", "plain", SUM, f"{SUM}\n    output[..., max(value.shape[-1] // 8 * 8, 1) :] = 0",
           DIM, VALUE_DIM),
    Mutant("value-dim-as-wide-as-head-dim", "plain", SUM, f"{SUM}\n    output[..., head_dim:] = 0",
           "gqa-heads/qk-v-head-dim-swap", VALUE_DIM),
    Mutant("value-dim-first-64-only", "plain", SUM, f"{SUM}\n    output[..., 64:] = 0", DIM, VALUE_DIM),
    Mutant("offsets-in-16-bits", "pointers", "return memory[offsets]", "return memory[offsets % 2**16]",
           "integer-overflow/int16-index-overflow", OUTPUT),
    Mutant("key-index-in-15-bits", "tiled", "k_tile, v_tile = k_head[keys].to(wide), v_head[keys]",
           "k_tile, v_tile = k_head[keys % 2**15].to(wide), v_head[keys % 2**15]",
           "integer-overflow/int16-index-overflow", OUTPUT),
    Mutant("row-index-in-15-bits", "tiled", "q_tile = query[b, h, rows]", "q_tile = query[b, h, rows % 2**15]",
           "integer-overflow/int16-index-overflow", OUTPUT),
    Mutant("offsets-in-32-bits", "pointers", "return memory[offsets]", "return memory[offsets.int().long() % size]",
           "integer-overflow/int32-index-overflow", OUTPUT),
    Mutant("mask-offsets-in-16-bits", "pointers", "attn_mask = attn_mask.expand(batch, heads, q_len, k_len)",
           "attn_mask = attn_mask.expand(batch, heads, q_len, k_len)\n"
           "        offsets = torch.arange(attn_mask.numel()) % 2**16\n"
           "        attn_mask = attn_mask.flatten()[offsets].view(attn_mask.shape)",
           "integer-overflow/int32-index-overflow", OUTPUT),
)  # fmt: skip
