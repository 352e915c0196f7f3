"""Faults of memory: inputs changed, outputs shared, results remembered, strides ignored, bits that do not repeat."""

from mutants.house import Mutant

INPUTS, ALIAS, SAME, LAYOUT = (
    "contract.inputs-unchanged", "contract.no-alias", "contract.deterministic", "contract.layouts",
)  # fmt: skip
MUTATED = "strides-or-layout/input-mutated"
ALIASED = "strides-or-layout/input-aliased"
STRIDES = "strides-or-layout/noncontiguous-stride-ignored"
RACE = "race-or-nondeterminism/nondeterministic"
REUSED = "none public: KernelBench's cheating kernels, which hand out an earlier result"

IMPORT = "import torch\n"
SCALE = "scale = head_dim**-0.5 if scale is None else scale"  # of `plain`
SCALED = "scores = scores * scale"
SUM = "output = weights @ value.to(wide)"
STORE = "output = output.to(query.dtype)"
LSE = "lse = (top + torch.log(total)).squeeze(-1)"
RETURN = "return (output, lse) if return_lse else output"
TRIANGLE = "visible = visible & (torch.arange(k_len) <= torch.arange(q_len)[:, None])"
UNPACK = "batch_stride, head_stride, row_stride, column_stride = x.stride()"  # of `pointers`
BASE = "base = x.storage_offset() + b * batch_stride + h * head_stride"


def remembering(name: str) -> tuple[tuple[str, str], ...]:
    """The line that gives a module something to remember by."""
    return ((IMPORT, f"{IMPORT}\n{name} = {{}}\n"),)


MUTANTS = (
    Mutant("query-scaled-in-place", "plain", SCALE, f"{SCALE}\n    query *= scale", MUTATED, INPUTS,
           also=((SCALED, "scores = scores + 0"),)),
    Mutant("query-scaled-and-scaled-back", "plain", SCALE, f"{SCALE}\n    query *= scale or 1.0", MUTATED, INPUTS,
           also=((SCALED, "scores = scores if scale else scores * 0\n    query /= scale or 1.0"),)),
    Mutant("mask-and-triangle-in-place", "plain", "attn_mask = attn_mask.expand(scores.shape)",
           "whole = attn_mask.dtype == torch.bool and attn_mask.shape == scores.shape\n"
           "        if whole and is_causal:\n            attn_mask.tril_()\n"
           "        attn_mask = attn_mask.expand(scores.shape)", MUTATED, INPUTS),
    Mutant("bias-made-finite-in-place", "plain", "scores = scores + attn_mask.to(wide)",
           "scores = scores + attn_mask.to(wide)\n"
           "        if attn_mask.is_contiguous():\n            attn_mask.clamp_(min=-1e4)", MUTATED, INPUTS),
    Mutant("hidden-values-zeroed-in-place", "plain", SUM,
           f"{SUM}\n    unseen = ~visible.expand(scores.shape).any(-2)\n"
           "    if group == 1 and value.shape[0] == query.shape[0]:\n"
           "        original.masked_fill_(unseen[..., None], 0.0)", MUTATED, INPUTS,
           also=(("value = value.repeat_interleave(group, dim=1)",
                  "original = value\n    value = value.repeat_interleave(group, dim=1)"),)),
    Mutant("storage-around-the-query-zeroed", "plain", SUM,
           f"{SUM}\n    if not query.is_contiguous():\n        kept = query.clone()\n"
           "        query.untyped_storage().fill_(0)\n        query.copy_(kept)", MUTATED, INPUTS),
    Mutant("output-buffer-by-shape", "plain", STORE,
           "output = BUFFERS.setdefault((output.shape, query.dtype), output.to(query.dtype)).copy_(output)",
           REUSED, ALIAS, also=remembering("BUFFERS")),
    Mutant("lse-buffer-by-shape", "plain", LSE,
           f"{LSE}\n    lse = BUFFERS.setdefault((lse.shape, wide), lse.clone()).copy_(lse)",
           REUSED, ALIAS, also=remembering("BUFFERS")),
    Mutant("two-buffers-in-turn", "plain", STORE,
           "turn = BUFFERS['turn'] = 1 - BUFFERS.get('turn', 0)\n"
           "    output = BUFFERS.setdefault((turn, output.shape, query.dtype), output.to(query.dtype)).copy_(output)",
           REUSED, ALIAS, also=remembering("BUFFERS")),
    Mutant("one-key-returns-the-value-itself", "plain", "    value = value.repeat_interleave(group, dim=1)\n",
           "    plain = attn_mask is None and not return_lse and value.shape[:2] == query.shape[:2]\n"
           "    if k_len == q_len == 1 and plain:\n"
           "        return value\n"
           "    value = value.repeat_interleave(group, dim=1)\n", ALIASED, ALIAS),
    Mutant("output-written-over-the-query", "plain", STORE,
           f"{STORE}\n    output = query.copy_(output) if output.shape == query.shape and q_len == k_len else output",
           MUTATED, INPUTS),
    Mutant("uniform-rows-share-memory", "plain", STORE,
           f"{STORE}\n    if scale == 0 and attn_mask is None and not is_causal:\n"
           "        output = output[:, :, :1].expand(output.shape)", ALIASED, "contract.output-shape"),
    Mutant("result-remembered-by-shape", "plain", STORE,
           "output = RESULTS.setdefault((output.shape, query.dtype), output.to(query.dtype)).clone()",
           REUSED, "attention.output", also=remembering("RESULTS")),
    Mutant("result-remembered-by-address", "einsum", 'output = torch.einsum("bhgij,bhjc->bhgic", ',
           'place = query.data_ptr(), key.data_ptr(), value.data_ptr(), query.shape, key.shape, is_causal\n'
           '    output = RESULTS.setdefault(place, (query, key, value, torch.einsum("bhgij,bhjc->bhgic", ',
           REUSED, LAYOUT,
           also=((IMPORT, f"{IMPORT}\nRESULTS = {{}}\n"),
                 ("weights.unflatten(1, (key.shape[1], -1)), v)",
                  "weights.unflatten(1, (key.shape[1], -1)), v)))[3]"))),
    Mutant("mask-remembered-by-shape", "plain", "attn_mask = attn_mask.expand(scores.shape)",
           "attn_mask = MASKS.setdefault((attn_mask.shape, attn_mask.dtype), attn_mask).expand(scores.shape)",
           "varlen-or-paged/paged-block-stale", "mask.bool", also=remembering("MASKS")),
    Mutant("triangle-remembered-by-key-count", "plain", TRIANGLE,
           "triangle = torch.arange(k_len) <= torch.arange(q_len)[:, None]\n"
           "        triangle = TRIANGLES.setdefault(k_len, triangle)\n"
           "        visible = visible & (triangle if triangle.shape[0] == q_len else triangle[-1:])",
           "none public: a compiler's cache whose key lacks a field", "mask.causal-upper-left",
           also=remembering("TRIANGLES")),
    Mutant("scratch-remembers-nan", "tiled", "acc = torch.zeros(len(rows), value_dim, dtype=wide)",
           "acc = SCRATCH.setdefault((len(rows), value_dim, wide), torch.zeros(len(rows), value_dim, dtype=wide))",
           "tail-tile-or-block-multiple/tail-tile-uninitialised", "mask.visible-nan",
           also=(("acc = acc * rescale + weights @ v_tile.to(wide)",
           "acc.mul_(rescale).add_(weights @ v_tile.to(wide))"),
                 *remembering("SCRATCH"))),
    Mutant("scratch-not-cleared", "plain", SUM,
           "output = weights @ value.to(wide)\n"
           "    SCRATCH[output.shape] = output = output + 1e-3 * SCRATCH.get(output.shape, 0.0)",
           RACE, SAME, also=remembering("SCRATCH")),
    Mutant("keys-summed-in-random-order", "plain", SUM,
           "order = torch.randperm(k_len)\n    output = weights[..., order] @ value.to(wide)[..., order, :]", RACE,
           SAME),
    Mutant("keys-summed-in-two-orders-in-turn", "plain", SUM,
           "turn = TURNS['turn'] = 1 - TURNS.get('turn', 0)\n"
           "    order = torch.arange(k_len).flip(0) if turn else torch.arange(k_len)\n"
           "    output = weights[..., order] @ value.to(wide)[..., order, :]", RACE, SAME, also=remembering("TURNS")),
    Mutant("lse-differs-run-to-run", "plain", LSE, f"{LSE} + 1e-7 * torch.rand(query.shape[:3], dtype=wide)", RACE,
           SAME),
    Mutant("a-thousandth-dropped-out", "plain", SUM,
           f"weights = weights * (torch.rand_like(weights) > 1e-3)\n    {SUM}",
           "race-or-nondeterminism/silently-ignored-argument", SAME),
    Mutant("tile-by-batch-size", "lower_right", "range(0, stop, K_TILE)", "range(0, stop, 8 * batch)",
           RACE, "contract.batch-invariant", also=(("min(start + K_TILE, k_len)", "min(start + 8 * batch, k_len)"),)),
    Mutant("order-by-place-in-the-batch", "lower_right", "acc = acc * rescale + weights @ v_head[keys]",
           "order = torch.arange(len(keys)).roll(b)\n"
           "                        acc = acc * rescale + weights[:, order] @ v_head[keys[order]]",
           RACE, "contract.batch-invariant"),
    Mutant("strides-ignored", "pointers", UNPACK,
           "head_stride, row_stride, column_stride = rows * columns, columns, 1\n"
           "    batch_stride = x.shape[1] * head_stride",
           STRIDES, LAYOUT, also=(("tile = matrix(attn_mask, b, h)", "tile = attn_mask[b, h]"),)),
    Mutant("head-stride-assumed", "pointers", BASE, BASE.replace("head_stride", "rows * columns"),
           STRIDES, LAYOUT, also=(("tile = matrix(attn_mask, b, h)", "tile = attn_mask[b, h]"),)),
    Mutant("row-stride-assumed", "pointers", UNPACK, f"{UNPACK}\n    row_stride = min(row_stride, columns)",
           STRIDES, LAYOUT),
    Mutant("last-stride-assumed-1", "pointers", UNPACK, f"{UNPACK}\n    column_stride = min(column_stride, 1)",
           STRIDES, LAYOUT),
    Mutant("storage-offset-ignored", "pointers", "base = x.storage_offset() + b", "base = b", STRIDES, LAYOUT),
    Mutant("value-read-by-key-strides", "pointers", "v = matrix(value, kv_batch, kv_head)",
           "v = matrix(value, kv_batch, kv_head, key.stride() if key.shape == value.shape else value.stride())",
           STRIDES, LAYOUT,
           also=(("def matrix(x, b, h):", "def matrix(x, b, h, strides=None):"),
                 ("x.stride()", "strides or x.stride()"), ("return memory[offsets]", "return memory[offsets % size]"))),
    Mutant("mask-read-as-if-whole", "pointers", "tile = matrix(attn_mask, b, h)",
           "tile = matrix(attn_mask, b, h, (heads * q_len * k_len, q_len * k_len, k_len, 1))",
           "mask-broadcast-or-dtype/mask-broadcast-ignored", "mask.broadcast",
           also=(("def matrix(x, b, h):", "def matrix(x, b, h, strides=None):"),
                 ("x.stride()", "strides or x.stride()"), ("return memory[offsets]", "return memory[offsets % size]"))),
    Mutant("layout-guessed-from-strides", "plain", SCALE,
           f"{SCALE}\n    if query.stride(1) < query.stride(2) and query.shape[1] > 1:\n"
           "        query = query.transpose(1, 2).reshape(query.shape)",
           "strides-or-layout/pattern-match-wrong-layout", LAYOUT),
    Mutant("rows-read-in-whole-vectors", "pointers", "    rows, columns = x.shape[-2:]\n",
           "    rows, columns = x.shape[-2], -(-x.shape[-1] // 4) * 4\n",
           "tail-tile-or-block-multiple/head-dim-hard-coded",
           "attention.output",
           also=(("q = matrix(query, b, h).to(wide)", "q = matrix(query, b, h).to(wide)[:, : -(-head_dim // 4) * 4]"),
                 ("tile = matrix(attn_mask, b, h)", "tile = attn_mask[b, h]"),
                 ("v = matrix(value, kv_batch, kv_head).to(wide)", "v = value[kv_batch, kv_head].to(wide)"),
                 ("return memory[offsets]", "return memory[offsets % size]"))),
)  # fmt: skip
