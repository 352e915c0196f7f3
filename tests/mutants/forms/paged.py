"""Faults of attention over pages, forward and backward."""

from mutants.house import Mutant

NONE = "none public: the survey has few reports of pages, and none of this place"
STALE, TAIL = "masked-value-leak/paged-block-stale", "tail-tile-or-block-multiple/tail-tile-not-masked"
CHUNK, ACCEPTED = "varlen-or-paged/chunked-prefill-offset", "validation-or-degenerate/silently-accepted"
ORDER, ABSENT, SIZE, CAUSAL, PACKED, ENTRY, LENGTH = (
    f"paged.{name}"
    for name in ("order", "absent", "page-size", "causal", "packed-queries", "table-range", "length-range")
)
BACK = "paged.backward"
COPY, STREAM, BACKWARD = "forms/paged", "forms/paged_stream", "forms/paged_backward"

BLOCKS = "blocks = block_table[b, :needed].long()"
KEYS, VALUES = "key_pages[blocks].flatten(0, 1)[:length]", "value_pages[blocks].flatten(0, 1)[:length]"
THERE = "there = place < key_lengths[:, None]"
LENGTHS = "key_lengths.tolist()"
CEILING = "(length + page_size - 1) // page_size"
TRIANGLE = "triu(length - q.shape[1] + 1)"
QUERIES = "zip(queries, key_lengths.tolist(), strict=True)"
NEEDED = "needed = torch.arange(max_blocks) * page_size < key_lengths[:, None]"
RANGE = "if page_size == 0 or (key_lengths < 0).any() or (key_lengths > max_blocks * page_size).any():"
INTO_POOL = "total.index_add_(0, own, of_heads.transpose(0, 1))"
AGAIN = "weights = weights_of(scores, lse[:, rows])"
SAVED, TO_KEYS = "slots, counts, is_causal, scale = ctx.call", "delta[:, rows, None]) * scale"
PRESENT = "(needed & ((block_table < 0) | (block_table >= num_blocks))).any()"

MUTANTS = (
    Mutant("paged-block-one-off", COPY, KEYS, KEYS.replace("[blocks]", "[(blocks + 1) % num_blocks]"), NONE, ORDER),
    Mutant("paged-table-ignored", COPY, BLOCKS, "blocks = torch.arange(needed)", NONE, ORDER),
    Mutant("paged-storage-order", COPY, BLOCKS, "blocks = block_table[b, :needed].long().sort().values", NONE, ORDER),
    Mutant("paged-table-read-backwards", COPY, BLOCKS, "blocks = block_table[b, :needed].long().flip(0)", NONE, ORDER),
    Mutant("paged-row-of-the-first-sequence", COPY, BLOCKS, "blocks = block_table[0, :needed].long()", NONE, ORDER),
    Mutant("paged-row-stride-one-less", COPY, BLOCKS,
           "blocks = block_table.flatten()[b * (max_blocks - 1) :][:needed].long()",
           "strides-or-layout/noncontiguous-stride-ignored", ORDER),
    Mutant("paged-last-page-not-written-yet", COPY, BLOCKS,
           "blocks = block_table[b, torch.arange(needed).clamp(max=max(needed - 2, 0))].long()", STALE, ORDER),
    Mutant("paged-values-of-another-page", COPY, VALUES, VALUES.replace("[blocks]", "[blocks.roll(1)]"), NONE, ORDER),
    Mutant("paged-values-of-another-slot", COPY, VALUES, VALUES.replace("[blocks]", "[blocks].roll(1, 1)"), NONE,
           ORDER),
    Mutant("paged-lengths-of-the-first-sequence", COPY, QUERIES,
           QUERIES.replace(LENGTHS, "[int(key_lengths[0])] * len(key_lengths)"), NONE, ORDER),
    Mutant("paged-longest-length-for-all", STREAM, THERE, "there = place < key_lengths.max().expand(batch, 1)", NONE,
           ORDER),
    Mutant("paged-last-key-missing", STREAM, THERE, "there = place < key_lengths[:, None] - 1", NONE, ORDER),
    Mutant("paged-clears-behind-the-length", COPY, f"{BLOCKS}\n",
           f"{BLOCKS}\n        for pages in (key_pages, value_pages):\n"
           "            pages[blocks[-1:], length - page_size * (needed - 1) :] = 0\n",
           "strides-or-layout/input-mutated", ORDER),
    Mutant("paged-online-without-a-maximum", STREAM, "at = torch.where(higher == -torch.inf, 0.0, higher)",
           "at = torch.zeros_like(higher)", "softmax-max-or-sentinel/online-softmax-init", ORDER,
           also=(("kept, weights = torch.exp(top - at), ", "kept, weights = torch.ones_like(top), "),
                 ("lse = (top + torch.log(total))", "lse = torch.log(total)"))),
    Mutant("paged-tail-of-the-last-page-read", STREAM, THERE,
           "there = place < (key_lengths[:, None] + page_size - 1) // page_size * page_size", TAIL, ABSENT),
    Mutant("paged-one-slot-beyond", STREAM, THERE, "there = place <= key_lengths[:, None]", TAIL, ABSENT),
    Mutant("paged-absent-slots-score-0", STREAM, "masked_fill(~visible, -torch.inf)",
           "masked_fill(~visible & there[:, None, None], -torch.inf)", TAIL, ABSENT),
    Mutant("paged-absent-slots-times-0", STREAM, "torch.where(there[..., None, None], pages[blocks], 0.0)",
           "pages[blocks]", STALE, ABSENT),
    Mutant("paged-unused-entries-read", COPY, BLOCKS,
           f"{BLOCKS}\n        value_pages[block_table[b, needed:].long()]", STALE, ABSENT),
    Mutant("paged-one-entry-too-many", COPY, CEILING, "length // page_size + 1", STALE, ABSENT),
    Mutant("paged-pages-of-16", COPY, KEYS,
           "key_pages.flatten(0, 1)[(blocks[:, None] * 16 + torch.arange(page_size)).flatten() % "
           "(num_blocks * page_size)][:length]", "tail-tile-or-block-multiple/head-dim-hard-coded", SIZE),
    Mutant("paged-pages-of-at-most-16", STREAM, THERE,
           f"{THERE}\n        there = there & (place - column * page_size < 16)",
           "tail-tile-or-block-multiple/head-dim-hard-coded", SIZE),
    Mutant("paged-part-of-a-page-left-out", STREAM, NEEDED,
           "needed = (torch.arange(max_blocks) + 1) * page_size <= key_lengths[:, None]", TAIL, SIZE),
    Mutant("paged-takes-pages-of-0", STREAM, RANGE, RANGE.replace("page_size == 0 or ", ""), ACCEPTED, SIZE),
    Mutant("paged-chunk-at-the-upper-left", COPY, TRIANGLE, "triu(1)", CHUNK, CAUSAL),
    Mutant("paged-chunk-sees-the-future", COPY, TRIANGLE, "triu(length - q.shape[1] + 2)", CHUNK, CAUSAL),
    Mutant("paged-corner-of-the-capacity", COPY, TRIANGLE, "triu(max_blocks * page_size - q.shape[1] + 1)", CHUNK,
           CAUSAL),
    Mutant("paged-corner-of-the-longest", STREAM, "(key_lengths - counts)", "(key_lengths.max() - counts)", CHUNK,
           CAUSAL),
    Mutant("paged-causal-ignored", STREAM, "if is_causal:", "if False:",
           "causal-geometry/fallback-path-drops-option", CAUSAL),
    Mutant("paged-rows-that-see-nothing-are-nan", COPY,
           "torch.softmax(scores.masked_fill(empty[:, None], 0.0), -1).masked_fill(empty[:, None], 0.0)",
           "torch.softmax(scores, -1)", "fully-masked-row/fully-masked-row-nan", "mask.fully-masked-row"),
    Mutant("paged-corner-of-the-longest-query", STREAM, "(key_lengths - counts)", "(key_lengths - q.shape[2])", CHUNK,
           PACKED),
    Mutant("paged-queries-one-a-sequence", STREAM, "query[start : start + count]", "query[b : b + count]",
           "varlen-or-paged/varlen-boundary-leak", PACKED),
    Mutant("paged-sequences-without-queries-go-last", COPY, QUERIES,
           QUERIES.replace("zip(queries", "zip(sorted(queries, key=lambda x: x.shape[1] == 0)"),
           "varlen-or-paged/zero-length-kv", PACKED),
    Mutant("paged-packed-rows-backwards", COPY, "torch.cat(outputs, 1)", "torch.cat(outputs[::-1], 1)",
           "tail-tile-or-block-multiple/output-permuted", PACKED),
    Mutant("paged-length-0-is-nan", STREAM, "torch.where(empty, 1.0, total)", "total * 1.0",
           "varlen-or-paged/zero-length-kv", LENGTH),
    Mutant("paged-length-0-has-lse-0", COPY, ".masked_fill(empty, -torch.inf)", ".masked_fill(empty, 0.0)",
           "varlen-or-paged/zero-length-kv", LENGTH),
    Mutant("paged-full-table-refused", COPY, "if not 0 <= length <= max_blocks * page_size:",
           "if not 0 <= length < max_blocks * page_size:", NONE, LENGTH),
    Mutant("paged-takes-negative-lengths", STREAM, RANGE, RANGE.replace("(key_lengths < 0).any() or ", ""), ACCEPTED,
           LENGTH),
    Mutant("paged-takes-lengths-beyond-the-table", STREAM, RANGE,
           RANGE.replace(" or (key_lengths > max_blocks * page_size).any()", ""), ACCEPTED, LENGTH),
    Mutant("paged-takes-negative-entries", STREAM, PRESENT, "(needed & (block_table >= num_blocks)).any()", ACCEPTED,
           ENTRY),
    Mutant("paged-cuts-entries-to-the-pool", STREAM, PRESENT, "(needed & (block_table < 0)).any()", ACCEPTED, ENTRY,
           also=(("torch.where(needed, block_table, 0).long()",
                  "torch.where(needed, block_table, 0).long().clamp(max=num_blocks - 1)"),)),
    Mutant("paged-heads-in-turn", COPY, "repeat_interleave(group, 0)", "repeat(group, 1, 1)",
           "gqa-heads/gqa-head-order", "grouped.head-map"),
    Mutant("paged-scale-of-the-value-dim", COPY, "query.shape[-1] ** -0.5", "value_pages.shape[-1] ** -0.5",
           "gqa-heads/qk-v-head-dim-swap", "attention.value-dim"),
    Mutant("paged-scale-without-its-sign", STREAM, "if scale is None else scale", "if scale is None else abs(scale)",
           "scale-softcap-bias/silently-ignored-argument", "attention.scale-explicit"),
    Mutant("paged-weights-in-bfloat16", COPY, "weights @ value", "weights.bfloat16().to(wide) @ value",
           "varlen-or-paged/precision-change-regression", "accuracy.output-within-budget"),
    Mutant("paged-grad-of-shared-pages-overwritten", BACKWARD, INTO_POOL, "total[own] = of_heads.transpose(0, 1)",
           NONE, BACK),
    Mutant("paged-grad-of-the-first-sequence", BACKWARD, INTO_POOL,
           INTO_POOL.replace("transpose(0, 1))", "transpose(0, 1) * (rows.start == 0))"), NONE, BACK),
    Mutant("paged-grad-of-shared-pages-detached", COPY, "key, value = (x.to(wide)",
           "if b and needed and bool(blocks[0] == block_table[0, 0]):\n"
           "            key, value = key.detach(), value.detach()\n        key, value = (x.to(wide)", NONE, BACK),
    Mutant("paged-grad-of-a-mean-over-sequences", BACKWARD, INTO_POOL,
           INTO_POOL.replace("transpose(0, 1))", "transpose(0, 1) / len(counts))"), NONE, BACK),
    Mutant("paged-grad-halved", COPY, "value_pages[blocks]", "((value_pages + value_pages.detach()) / 2)[blocks]", NONE,
           BACK),
    Mutant("paged-grad-one-slot-beyond", BACKWARD, INTO_POOL,
           f"{INTO_POOL}\n                total[(own[-1:] + 1) % len(total)] += of_heads[:, -1:].transpose(0, 1)", TAIL,
           BACK),
    Mutant("paged-grad-of-another-slot", BACKWARD, INTO_POOL, INTO_POOL.replace("own", "own.roll(1)"), NONE, BACK),
    Mutant("paged-grad-in-the-order-of-the-pool", BACKWARD, INTO_POOL, INTO_POOL.replace("own", "own.sort().values"),
           NONE, BACK),
    Mutant("paged-grad-heads-in-turn", BACKWARD, "grads.unflatten(0, (kv_heads, -1)).sum(1)",
           "grads.unflatten(0, (-1, kv_heads)).sum(0)", "gqa-heads/gqa-head-order", BACK),
    Mutant("paged-grad-of-one-head-of-a-group", BACKWARD, "grads.unflatten(0, (kv_heads, -1)).sum(1)",
           "grads.unflatten(0, (kv_heads, -1))[:, 0]", "gqa-heads/gqa-grad-not-summed", BACK),
    Mutant("paged-grad-without-the-triangle", BACKWARD, AGAIN,
           AGAIN.replace("scores,", "q @ k.transpose(-1, -2) * scale,"), "backward/backward-ignores-causal", BACK),
    Mutant("paged-grad-of-the-lse-dropped", BACKWARD, ".sum(-1).T - grad_lse", ".sum(-1).T",
           "none public: few kernels give the lse a gradient", BACK),
    Mutant("paged-grad-of-absent-values-times-0", BACKWARD, "grad_values.view(value_pages.shape))",
           "grad_values.view(value_pages.shape) + 0 * value_pages)", "masked-value-leak/nan-in-masked-value", BACK),
    Mutant("paged-grad-pool-in-bfloat16", BACKWARD, "(torch.zeros(x.flatten(0, 1).shape, dtype=wide) for",
           "(torch.zeros(x.flatten(0, 1).shape, dtype=torch.bfloat16) for",
           "precision-or-range/fp16-accumulate", BACK,
           also=((INTO_POOL, INTO_POOL.replace("transpose(0, 1))", "transpose(0, 1).bfloat16())")),)),
    Mutant("paged-grad-with-the-default-scale", BACKWARD, SAVED, f"{SAVED}\n        scale = query.shape[-1] ** -0.5",
           "scale-softcap-bias/silently-ignored-argument", BACK),
    Mutant("paged-grad-with-the-scale-without-its-sign", BACKWARD, SAVED, f"{SAVED}\n        scale = abs(scale)",
           "scale-softcap-bias/abs-scale", BACK),
    Mutant("paged-grad-of-a-page-named-twice-overwritten", BACKWARD, INTO_POOL,
           "total[own] += of_heads.transpose(0, 1)", NONE, BACK),
    Mutant("paged-grad-of-the-first-64-keys", BACKWARD, TO_KEYS,
           f"{TO_KEYS} * (torch.arange(k.shape[1]) < 64)", TAIL, BACK),
)  # fmt: skip
