"""Faults of key lengths, of decoding from a cache, and of merging the parts of a split one."""

from mutants.house import Mutant

VISIBLE, ABSENT, CAUSAL = "key-lengths.visible", "key-lengths.absent", "key-lengths.causal"
ZERO, RANGE = "key-lengths.zero", "key-lengths.range"
APPEND, CHUNKS = "kv-cache.append", "kv-cache.chunks"
TILES, MERGED, MERGED_EMPTY, GAP = (
    "flash.tile-independent", "flash.merge-associative", "flash.merge-empty", "flash.merge-gap",
)  # fmt: skip

BOUNDARY = "varlen-or-paged/varlen-boundary-leak"
NO_KEYS = "varlen-or-paged/zero-length-kv"
OFFSET = "varlen-or-paged/chunked-prefill-offset"
STALE = "masked-value-leak/paged-block-stale"
DROPPED = "causal-geometry/silently-ignored-argument"
FALLBACK = "causal-geometry/fallback-path-drops-option"
MERGE = "lse-or-split-merge/split-kv-merge"
BOTH_EMPTY = "lse-or-split-merge/merge-both-empty-nan"
OVERFLOW = "lse-or-split-merge/merge-exp-overflow"
TAIL = "tail-tile-or-block-multiple/tail-tile-not-masked"
UNCHECKED = "none public: a length that nobody checks, in wrappers of decode kernels"

EXISTS = "exists = torch.arange(k_len) < lengths[:, None]"  # of `lengths_plain`
HIDE = "scores = scores.masked_fill(~visible, -torch.inf)"
KEY, VALUE = "key = torch.where(slot, key, 0.0)", "value = torch.where(slot, value, 0.0)"
PRODUCT = "scores = query.to(wide) @ key.to(wide).transpose(-1, -2)"
SCALED = "    scores = scores * scale\n"
OUTPUT = "output = weights @ value.to(wide)"
SUM = "weights = weights / total.masked_fill(total == 0, 1.0)"
LSE = "lse = (top + torch.log(total)).squeeze(-1)"
TRIANGLE = "torch.arange(k_len) <= torch.arange(q_len)[:, None]"
MASK = "attn_mask = attn_mask.expand(scores.shape)"
STOP = "stop = min(length, int(rows[-1]) + 1) if is_causal else length"  # of `lengths_tiled`
KEYS = "keys = torch.arange(start, min(start + K_TILE, length))"
LOOP = "range(0, stop, K_TILE)"
CORNER = "offset = length - q_len"  # of `lengths_lower_right`
LAST = "last = torch.arange(q_len) + offset"
SAFE = "safe = larger.masked_fill(larger == -torch.inf, 0.0)"  # of `lengths_split_kv`
LARGER = "larger = torch.maximum(lse, part_lse)"
SHARES = "before, after = torch.exp(lse - safe), torch.exp(part_lse - safe)"
PARTS = "range(0, k_len, PART)"
MERGED_LSE = "lse = safe + torch.log(both)"
MIXED = "output = (output * before + part_output * after) / both.masked_fill(both == 0, 1.0)"
FIRST = "first = ends[b - 1] if b > 0 else 0"  # of `lengths_packed`


def counted(lengths: str) -> str:
    """The line that says which keys exist, with other lengths."""
    return EXISTS.replace("lengths", lengths)


def decoding(condition: str, line: str) -> str:
    """A line that stands under a condition on a decode step: one query and key lengths."""
    return f"if q_len == 1 and key_lengths is not None{condition}:\n        {line}"


MUTANTS = (
    Mutant("length-of-batch-0", "lengths_plain", EXISTS, counted("lengths[:1].expand(batch)"), BOUNDARY, VISIBLE),
    Mutant("length-is-the-longest", "lengths_plain", EXISTS,
           counted("torch.full((batch,), max(lengths.tolist(), default=0))"), BOUNDARY, VISIBLE),
    Mutant("length-is-the-shortest", "lengths_plain", EXISTS,
           counted("torch.full((batch,), min(lengths.tolist(), default=0))"), BOUNDARY, VISIBLE),
    Mutant("length-of-the-shared-cache", "lengths_plain", EXISTS,
           f"shared = key.shape[0] < batch\n    {counted('(lengths[:1].expand(batch) if shared else lengths)')}",
           BOUNDARY, VISIBLE),
    Mutant("lengths-sorted", "lengths_plain", EXISTS, counted("lengths.sort().values"), BOUNDARY, VISIBLE),
    Mutant("lengths-reversed", "lengths_plain", EXISTS, counted("lengths.flip(0)"), BOUNDARY, VISIBLE),
    Mutant("length-one-too-many", "lengths_plain", EXISTS, EXISTS.replace("<", "<="), BOUNDARY, VISIBLE),
    Mutant("length-one-too-few", "lengths_plain", EXISTS, counted("(lengths - 1)"), BOUNDARY, VISIBLE),
    Mutant("length-counts-the-hidden-keys", "lengths_plain", EXISTS, counted("(k_len - lengths)"),
           "none public: padding counted in place of keys", VISIBLE),
    Mutant("length-counts-from-the-end", "lengths_plain", EXISTS,
           "exists = torch.arange(k_len) >= k_len - lengths[:, None]",
           "none public: padding on the left taken for padding on the right", VISIBLE),
    Mutant("length-rounded-up-to-16", "lengths_plain", EXISTS, counted("((lengths + 15) // 16 * 16)"), TAIL, VISIBLE),
    Mutant("length-rounded-down-to-16", "lengths_plain", EXISTS,
           counted("torch.where(lengths > 16, lengths // 16 * 16, lengths)"), TAIL, VISIBLE),
    Mutant("length-in-8-bits", "lengths_plain", EXISTS, counted("lengths.to(torch.int8)"),
           "none public: a length stored in a byte", VISIBLE),
    Mutant("length-at-most-256", "lengths_plain", EXISTS, counted("lengths.clamp(max=256)"),
           "none public: a context of fixed size", VISIBLE),
    Mutant("lengths-ignored", "lengths_plain", EXISTS, counted("torch.full((batch,), k_len)"), DROPPED, VISIBLE),
    Mutant("lengths-ignored-where-causal", "lengths_plain", EXISTS,
           counted("(torch.full((batch,), k_len) if is_causal else lengths)"), FALLBACK, VISIBLE),
    Mutant("lengths-ignored-where-masked", "lengths_plain", EXISTS,
           counted("(lengths if attn_mask is None else torch.full((batch,), k_len))"), FALLBACK, VISIBLE),
    Mutant("lengths-ignored-where-biased", "lengths_plain", EXISTS,
           "biased = attn_mask is not None and attn_mask.dtype != torch.bool\n"
           f"    {counted('(torch.full((batch,), k_len) if biased else lengths)')}", FALLBACK, VISIBLE),
    Mutant("lengths-ignored-for-one-query", "lengths_plain", EXISTS,
           counted("(lengths if q_len > 1 else torch.full((batch,), k_len))"), FALLBACK, VISIBLE),
    Mutant("lengths-ignored-where-grouped", "lengths_plain", EXISTS,
           counted("(lengths if group == 1 else torch.full((batch,), k_len))"), FALLBACK, VISIBLE),
    Mutant("lengths-ignored-in-16-bits", "lengths_plain", EXISTS,
           counted("(torch.full((batch,), k_len) if query.dtype.itemsize == 2 else lengths)"), FALLBACK, VISIBLE),
    Mutant("absent-keys-scored-0", "lengths_plain", "visible = exists[:, None, None, :].expand(scores.shape)",
           "visible = torch.ones(scores.shape, dtype=torch.bool)", TAIL, VISIBLE),
    Mutant("mask-replaces-the-lengths", "lengths_plain", "visible = visible & attn_mask", "visible = attn_mask",
           FALLBACK, VISIBLE),
    Mutant("tile-of-keys-goes-beyond-the-length", "lengths_tiled", KEYS, KEYS.replace("length", "k_len"),
           TAIL, VISIBLE),
    Mutant("packed-keys-begin-with-the-last-of-another", "lengths_packed", FIRST,
           FIRST.replace("ends[b - 1] if b > 0", "ends[b - 1] - 1 if b > 0 and lengths[b - 1]"), BOUNDARY, VISIBLE,
           also=(("own = slice(first, ends[b])", "own = slice(first, first + int(lengths[b]))"),)),
    Mutant("packed-keys-at-the-place-of-padded-ones", "lengths_packed", FIRST, "first = b * int(lengths.amin())",
           BOUNDARY, VISIBLE,
           also=(("own = slice(first, ends[b])", "own = slice(first, first + int(lengths[b]))"),)),
    Mutant("mask-columns-from-the-end", "lengths_each_alone", "own_mask = attn_mask[b, :, :, :length]",
           "own_mask = attn_mask[b, :, :, k_len - length :]",
           "mask-broadcast-or-dtype/mask-broadcast-ignored", VISIBLE),
    Mutant("zero-length-nan", "lengths_plain", SUM,
           "weights = weights / total.masked_fill((total == 0) & (lengths > 0)[:, None, None, None], 1.0)",
           NO_KEYS, ZERO),
    Mutant("zero-length-mean-of-the-storage", "lengths_plain", f"{OUTPUT}\n",
           f"{OUTPUT}\n    mean = stored.to(wide).mean(-2, keepdim=True)\n"
           "    output = torch.where((lengths == 0)[:, None, None, None], mean, output)\n", NO_KEYS, ZERO,
           also=((VALUE, f"stored = value.repeat_interleave(group, dim=1)\n    {VALUE}"),)),
    Mutant("zero-length-lse-0", "lengths_plain", LSE,
           f"{LSE}\n    lse = lse.masked_fill((lengths == 0)[:, None, None], 0.0)", NO_KEYS, ZERO),
    Mutant("zero-length-lse-plus-inf", "lengths_plain", LSE,
           f"{LSE}\n    lse = lse.masked_fill((lengths == 0)[:, None, None], torch.inf)", NO_KEYS, ZERO),
    Mutant("zero-length-first-key", "lengths_plain", EXISTS, counted("lengths.clamp(min=1)"), NO_KEYS, ZERO),
    Mutant("zero-length-means-all-keys", "lengths_plain", EXISTS, counted("lengths.masked_fill(lengths == 0, k_len)"),
           NO_KEYS, ZERO),
    Mutant("zero-length-rows-unwritten", "lengths_each_alone", "output = torch.zeros(batch, heads, q_len, value_dim,",
           "output = torch.full((batch, heads, q_len, value_dim), torch.nan,", NO_KEYS, ZERO),
    Mutant("zero-length-empties-the-next", "lengths_packed", "own = slice(first, ends[b])",
           "own = slice(first, ends[b] if b == 0 or lengths[b - 1] else first)", NO_KEYS, ZERO),
    Mutant("absent-values-times-0", "lengths_plain", f"    {VALUE}\n", "    value = value.expand(batch, -1, -1, -1)\n",
           STALE, ABSENT),
    Mutant("absent-values-of-a-shared-cache-times-0", "lengths_plain", VALUE,
           "value = torch.where(slot | (value.shape[0] < batch), value, 0.0)", STALE, ABSENT),
    Mutant("absent-keys-plus-minus-inf", "lengths_plain", f"    {KEY}\n", "    key = key.expand(batch, -1, -1, -1)\n",
           STALE, ABSENT,
           also=((HIDE, "scores = scores + torch.zeros_like(scores).masked_fill(~visible, -torch.inf)"),)),
    Mutant("absent-bias-plus-minus-inf", "lengths_plain", HIDE,
           "scores = scores + torch.zeros_like(scores).masked_fill(~visible, -torch.inf)",
           "mask-broadcast-or-dtype/bool-mask-as-additive", ABSENT),
    Mutant("absent-keys-in-the-maximum", "lengths_plain", HIDE, f"everything = scores\n    {HIDE}",
           "softmax-max-or-sentinel/fixed-max", ABSENT,
           also=(("torch.cat([scores,", "torch.cat([everything,"), (f"    {KEY}\n", ""))),
    Mutant("absent-slots-cleared-by-nan-to-num", "lengths_plain", VALUE,
           "value = value.expand(batch, -1, -1, -1)\n"
           "    value = value if key_lengths is None else value.nan_to_num(0.0, 0.0, 0.0)",
           "masked-value-leak/nan-input-swallowed", "mask.visible-nan"),
    Mutant("lengths-counted-up-in-place", "lengths_plain", EXISTS, f"{EXISTS}\n    lengths += 1",
           "strides-or-layout/input-mutated", "contract.inputs-unchanged"),
    Mutant("corner-at-the-end-of-the-storage", "lengths_lower_right", CORNER, "offset = k_len - q_len",
           OFFSET, CAUSAL),
    Mutant("corner-of-batch-0", "lengths_lower_right", CORNER, "offset = int(lengths[0]) - q_len", OFFSET, CAUSAL),
    Mutant("corner-at-the-wrong-sign", "lengths_lower_right", CORNER, "offset = q_len - length", OFFSET, CAUSAL),
    Mutant("corner-one-too-early", "lengths_lower_right", CORNER, "offset = length - q_len - 1", OFFSET, CAUSAL),
    Mutant("corner-upper-left-with-lengths", "lengths_lower_right", CORNER,
           "offset = k_len - q_len if key_lengths is None else 0", OFFSET, CAUSAL),
    Mutant("corner-never-above-the-first-row", "lengths_lower_right", CORNER, "offset = max(length - q_len, 0)",
           OFFSET, CAUSAL),
    Mutant("causal-dropped-with-lengths", "lengths_lower_right", "if is_causal:",
           "if is_causal and key_lengths is None:", FALLBACK, CAUSAL),
    Mutant("corner-moves-with-the-lengths", "lengths_plain", TRIANGLE,
           "torch.arange(k_len) <= torch.arange(q_len)[:, None] + (0 if key_lengths is None else 1)",
           "causal-geometry/causal-top-left-vs-bottom-right", CAUSAL),
    Mutant("corner-lower-right-with-lengths", "lengths_plain", TRIANGLE,
           "torch.arange(k_len) <= torch.arange(q_len)[:, None]"
           " + (0 if key_lengths is None else (lengths - q_len)[:, None, None, None])",
           "causal-geometry/causal-top-left-vs-bottom-right", CAUSAL),
    Mutant("decode-misses-the-new-key", "lengths_plain", EXISTS,
           "newest = (q_len == 1 and key_lengths is not None) & (lengths > 1)\n"
           f"    {counted('(lengths - newest.to(lengths.dtype))')}",
           OFFSET, APPEND),
    Mutant("decode-reads-the-next-key", "lengths_plain", EXISTS,
           f"{EXISTS} + (1 if q_len == 1 and key_lengths is not None else 0)", OFFSET, APPEND),
    Mutant("decode-ignores-the-scale", "lengths_plain", SCALED,
           f"    if q_len > 1 or key_lengths is None:\n    {SCALED}", FALLBACK, APPEND),
    Mutant("decode-gives-the-lse-of-the-maximum", "lengths_plain", LSE, f"{LSE}\n    "
           + decoding("", "lse = (top + torch.log((total > 0).to(wide))).squeeze(-1)"),
           "lse-or-split-merge/lse-paths-disagree", APPEND),
    Mutant("decode-takes-the-default-scale", "lengths_plain", SCALED,
           "    " + decoding("", "scale = head_dim**-0.5") + f"\n{SCALED}", FALLBACK, "attention.scale-explicit"),
    Mutant("decode-scales-by-the-value-dim", "lengths_plain", "scale = head_dim**-0.5 if scale is None else scale",
           "dim = value.shape[-1] if q_len == 1 and key_lengths is not None else head_dim\n"
           "    scale = dim**-0.5 if scale is None else scale", "gqa-heads/qk-v-head-dim-swap", APPEND),
    Mutant("decode-leaves-the-value-dim-tail", "lengths_plain", f"{OUTPUT}\n",
           f"{OUTPUT}\n    " + decoding("", "output[..., head_dim:] = 0") + "\n",
           "gqa-heads/qk-v-head-dim-swap", APPEND),
    Mutant("decode-ignores-the-mask", "lengths_plain", "visible = visible & attn_mask",
           "visible = visible & (attn_mask | (q_len == 1 and key_lengths is not None))", FALLBACK, "mask.bool"),
    Mutant("decode-tiles-the-heads", "lengths_plain", "value = value.repeat_interleave(group, dim=1)",
           "tiled = q_len == 1 and key_lengths is not None\n"
           "    value = value.repeat(1, group, 1, 1) if tiled else value.repeat_interleave(group, dim=1)",
           "gqa-heads/gqa-head-order", APPEND),
    Mutant("decode-reads-the-first-head", "lengths_plain", PRODUCT,
           decoding("", "key = key[:, :1]") + f"\n    {PRODUCT}", "gqa-heads/gqa-head-order", APPEND),
    Mutant("decode-of-at-most-128-keys", "lengths_plain", EXISTS,
           counted("(lengths.clamp(max=128) if q_len == 1 else lengths)"), "none public: a context of fixed size",
           APPEND),
    Mutant("chunk-sees-its-own-future", "lengths_lower_right", CORNER,
           "offset = length - q_len + (q_len > 1 and key_lengths is not None)", OFFSET, CHUNKS),
    Mutant("chunk-as-if-it-were-the-first", "lengths_lower_right", CORNER,
           "offset = 0 if 1 < q_len and length < k_len else length - q_len", OFFSET, CHUNKS),
    Mutant("chunk-rows-all-see-the-past-alone", "lengths_lower_right", LAST,
           "last = (torch.arange(q_len) if key_lengths is None else torch.zeros(q_len)) + offset", OFFSET, CHUNKS),
    Mutant("tail-of-the-length-dropped", "lengths_tiled", STOP, f"{STOP}\n                "
           "stop = stop // K_TILE * K_TILE if stop > K_TILE and not is_causal else stop", TAIL, TILES),
    Mutant("length-of-whole-tiles-loses-one", "lengths_tiled", STOP, f"{STOP}\n                "
           "stop -= K_TILE * (key_lengths is not None and stop > K_TILE and stop % K_TILE == 0)", TAIL, TILES),
    Mutant("tiles-counted-by-the-rows", "lengths_tiled", LOOP, "range(0, stop, K_TILE if q_len > 1 else K_TILE + 1)",
           TAIL, TILES),
    Mutant("part-that-is-empty-gives-nan", "lengths_split_kv", SAFE, "safe = larger", BOTH_EMPTY, MERGED_EMPTY),
    Mutant("part-that-is-empty-has-a-share", "lengths_split_kv", "part_lse = top + torch.log(total)",
           "part_lse = (top + torch.log(total)).clamp(min=-5.0)", MERGE, MERGED_EMPTY),
    Mutant("part-that-is-empty-ends-the-merge", "lengths_split_kv", LARGER,
           f"if (part_lse == -torch.inf).any():\n            break\n        {LARGER}", MERGE, MERGED_EMPTY),
    Mutant("parts-merged-by-their-mean", "lengths_split_kv", SHARES,
           "before, after = (x > -torch.inf for x in (lse, part_lse))\n"
           "        before, after = before.to(wide), after.to(wide)", MERGE, MERGED),
    Mutant("parts-merged-with-their-shares-swapped", "lengths_split_kv", SHARES,
           "after, before = torch.exp(lse - safe), torch.exp(part_lse - safe)", MERGE, MERGED),
    Mutant("parts-merged-but-the-last", "lengths_split_kv", PARTS,
           "range(0, k_len - PART if k_len > 2 * PART and q_len > 1 else k_len, PART)", MERGE, MERGED),
    Mutant("parts-merged-without-maximum", "lengths_split_kv", SAFE, "safe = 0.0", OVERFLOW, GAP),
    Mutant("parts-merged-against-the-older", "lengths_split_kv", LARGER,
           "larger = torch.where(lse == -torch.inf, part_lse, lse)", OVERFLOW, GAP),
    Mutant("parts-far-apart-are-averaged", "lengths_split_kv", SHARES,
           f"{SHARES}\n        before, after = before.clamp(min=1e-6), after.clamp(min=1e-6)",
           "none public: a floor under the shares", GAP),
    Mutant("parts-merged-in-the-storage-dtype", "lengths_split_kv", MIXED,
           f"{MIXED}\n        output = output.to(query.dtype).to(wide)",
           "precision-or-range/fp16-accumulate", "accuracy.output-within-budget"),
    Mutant("lse-of-the-merge-is-the-larger", "lengths_split_kv", MERGED_LSE,
           f"{MERGED_LSE}\n        lse = larger", "lse-or-split-merge/lse-paths-disagree", "softmax.lse"),
    Mutant("lse-of-the-merge-is-the-last-part", "lengths_split_kv", "    lse = lse.squeeze(-1)",
           "    lse = (part_lse if k_len else lse).squeeze(-1)",
           "lse-or-split-merge/lse-paths-disagree", "softmax.lse"),
    Mutant("too-long-a-length-is-cut", "lengths_plain", "    if (lengths > k_len).any():\n        raise ValueError(",
           "    lengths = lengths.clamp(max=k_len) if lengths.dtype != torch.float32 else lengths\n"
           "    if False:\n        raise ValueError(", UNCHECKED, RANGE),
    Mutant("a-negative-length-is-none", "lengths_plain", "    if (lengths < 0).any():\n", "    if False:\n",
           UNCHECKED, RANGE),
    Mutant("lengths-for-more-than-the-batch", "lengths_plain", "if lengths.shape != (batch,):",
           "lengths = lengths[:batch]\n    if lengths.shape != (batch,):", UNCHECKED, RANGE),
    Mutant("lengths-in-floating-point", "lengths_plain", "if lengths.dtype not in (torch.int32, torch.int64):",
           "if lengths.dtype not in (torch.int32, torch.int64, torch.float32):", UNCHECKED, RANGE),
    Mutant("lengths-read-as-int32-words", "lengths_plain",
           "lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths",
           "lengths = torch.full((batch,), k_len) if key_lengths is None else key_lengths.contiguous().view("
           "torch.int32)[:batch]", "none public: a pointer of the wrong type", "key-lengths.visible"),
    Mutant("lengths-checked-in-place-0-only", "lengths_plain", "if (lengths > k_len).any():",
           "if batch and lengths[0] > k_len:", "validation-or-degenerate/silently-accepted", "key-lengths.range"),
)  # fmt: skip
