"""Faults of the backward pass: each gradient, what flows back through the lse, and the weights computed again."""

from mutants.house import Mutant

QUERY, KEY, VALUE, BIAS = "backward.query", "backward.key", "backward.value", "backward.bias"
LSE, GROUPED, BROADCAST = "backward.lse", "backward.grouped", "backward.broadcast"
EMPTY, HIDDEN, RANGE = "backward.empty-row", "backward.hidden", "backward.recompute-range"
FORWARD, BUDGET = "backward.matches-forward", "accuracy.gradients-within-budget"
LAYOUTS, UNCHANGED, REPEATS = "contract.layouts", "contract.inputs-unchanged", "contract.deterministic"

MISMATCH, ALWAYS = "backward/fwd-bwd-mask-mismatch", "backward/backward-ignores-causal"
NOT_SUMMED, LAST_WRITER = "gqa-heads/gqa-grad-not-summed", "backward/dbias-broadcast-last-writer"
TAIL, STRIDES = "tail-tile-or-block-multiple/tail-tile-not-masked", "strides-or-layout/noncontiguous-grad-ignored"
MUTATED, SWAP = "strides-or-layout/input-mutated", "gqa-heads/qk-v-head-dim-swap"
NONDETERMINISTIC = "race-or-nondeterminism/nondeterministic"
IGNORED = "scale-softcap-bias/silently-ignored-argument"
SCALE_LEFT = "none public: a scale left to the other gradient"
DELTA_FAULT = "none public: the row's mean taken from the wrong place"
OF_LSE = "none public: a term that only a loss on the lse shows"
COARSE = "precision-or-range/fp16-accumulate"

C, R = "closed_form", "recompute"

DO = "do = grad_output.to(q.dtype)"  # of `closed_form`
DP = "dp = do @ v.transpose(-1, -2)"
DELTA = "delta = (weights * dp).sum(-1, keepdim=True)"
DS = "ds = weights * (dp - delta + grad_lse[..., None])"
DQ = "dq = scale * (ds @ k)"
DK = "dk = sum_readers(scale * (ds.transpose(-1, -2) @ q), key_shape)"
DV = "dv = sum_readers(weights.transpose(-1, -2) @ do, value_shape)"
DBIAS = "dbias = ds.sum_to_size(attn_mask.shape).to(attn_mask.dtype)"
SUM = "grad = grad.unflatten(1, (shape[1], -1)).sum(2)"
GIVEN = "ctx.given = scale, "
PAIRS = "grad.unflatten(1, (shape[1], -1))"
OF_MASK = "zip((1,) * (4 - attn_mask.ndim) + tuple(attn_mask.shape), ds.shape)"

AGAIN = "again = scores_of(q, k, mask, is_causal, scale, rows, keys)"  # of `recompute`
ENDS = "again = again.masked_fill(keys >= ends, -torch.inf)"
GUARD = "guarded = lse.masked_fill(lse == -torch.inf, torch.inf)"
P = "p = torch.exp(again - guarded[:, :, rows])"
P_STORED = "p = p.to(query.dtype).to(wide)"
DP_TILE = "dp = do[:, :, rows] @ v[:, :, keys].transpose(-1, -2)"
DS_STORED = "ds = (p * (dp - delta[:, :, rows])).to(query.dtype).to(wide)"
DV_TILE = "dv[:, :, keys] += p.transpose(-1, -2) @ do[:, :, rows]"
DK_TILE = "dk[:, :, keys] += ds.transpose(-1, -2) @ q[:, :, rows]"
DQ_TILE = "dq[:, :, rows] += ds @ k[:, :, keys]"
KEY_TILES = "for start in range(0, k.shape[2], TILE):\n            keys"
ROW_TILES = "for row in range(0, q.shape[2], TILE):\n                rows"
ROWS = "rows = torch.arange(row, row + TILE)\n                again"
PADDED_DO = "do = pad(grad_output.to(wide), (0, 0, 0, -q_len % TILE))"
PADDED_LSE = "guarded = pad(guarded, (0, -q_len % TILE), value=torch.inf)[..., None]"


def narrow(line: str, name: str) -> str:
    """The line of a running sum, which is then stored in the storage dtype."""
    return f"{line}\n                {name} = {name}.to(query.dtype).to(wide)"


MUTANTS = (
    Mutant("grad-query-unscaled", C, DQ, "dq = ds @ k", SCALE_LEFT, QUERY, "grad-unscaled"),
    Mutant("grad-query-scaled-twice", C, DQ, "dq = scale * scale * (ds @ k)", SCALE_LEFT, QUERY, "grad-scaled-twice"),
    Mutant("grad-query-scale-inverted", C, DQ, "dq = (ds @ k) / scale", "scale-softcap-bias/scale-inverted", QUERY),
    Mutant("grad-key-unscaled", C, DK, DK.replace("scale * (ds.transpose(-1, -2) @ q)", "ds.transpose(-1, -2) @ q"),
           SCALE_LEFT, KEY, "grad-unscaled"),
    Mutant("grad-key-scale-positive", C, DK, DK.replace("scale *", "abs(scale) *"),
           "none public: a scale whose sign is lost in one gradient", KEY, "grad-scale-absolute"),
    Mutant("grad-scale-is-the-default", C, GIVEN, "ctx.given = query.shape[-1] ** -0.5, ", IGNORED, FORWARD,
           "grad-scale-default"),
    Mutant("grad-scale-0-is-the-default", C, GIVEN, "ctx.given = scale or query.shape[-1] ** -0.5, ", IGNORED, FORWARD,
           "grad-scale-default"),
    Mutant("grad-delta-missing", C, DS, DS.replace("dp - delta", "dp"), DELTA_FAULT, QUERY, "grad-delta-missing"),
    Mutant("grad-delta-of-unnormalised-output", C, DELTA, f"{DELTA} * ctx.total", DELTA_FAULT, QUERY,
           also=((GIVEN, f"ctx.total = total\n        {GIVEN}"),)),
    Mutant("grad-delta-of-the-row-above", C, DELTA, f"{DELTA}.roll(1, 2)", DELTA_FAULT, QUERY),
    Mutant("grad-delta-of-head-0", C, DELTA, f"{DELTA}[:, :1]", DELTA_FAULT, QUERY),
    Mutant("grad-delta-without-weight", C, DS, "ds = weights * (dp + grad_lse[..., None]) - delta", DELTA_FAULT, QUERY,
           "grad-delta-unweighted"),
    Mutant("grad-value-unnormalised", C, DV, DV.replace("weights.transpose", "(weights * ctx.total).transpose"),
           "none public: the weights before their division", VALUE, "grad-unnormalised",
           also=((GIVEN, f"ctx.total = total\n        {GIVEN}"),)),
    Mutant("grad-value-takes-the-lse", C, DV, DV.replace("@ do", "@ (do + grad_lse[..., None])"), OF_LSE, VALUE),
    Mutant("grad-group-last-writer", C, SUM, f"grad = {PAIRS}[:, :, -1]", NOT_SUMMED, GROUPED,
           "grad-last-head-of-group"),
    Mutant("grad-key-group-last-writer", C, DK,
           DK.replace("@ q)", "@ q).unflatten(1, (key_shape[1], -1))[:, :, -1]"), NOT_SUMMED, GROUPED,
           "grad-last-head-of-group"),
    Mutant("grad-value-group-first-writer", C, DV,
           DV.replace("weights.transpose(-1, -2) @ do",
                      "(weights.mT @ do).unflatten(1, (value_shape[1], -1))[:, :, 0]"),
           NOT_SUMMED, GROUPED, "grad-first-head-of-group"),
    Mutant("grad-group-mean", C, SUM, f"grad = {PAIRS}.mean(2)", NOT_SUMMED, GROUPED, "grad-group-mean"),
    Mutant("grad-heads-tiled", C, SUM, "grad = grad.unflatten(1, (-1, shape[1])).sum(1)",
           "gqa-heads/gqa-head-order", GROUPED, "grad-heads-tiled"),
    Mutant("grad-of-batch-0-only", C, "return grad.sum_to_size(shape)", "return grad[: shape[0]]",
           "none public: a batch that shares its keys, of which one entry is read", BROADCAST,
           "grad-first-batch-of-shared-key"),
    Mutant("grad-lse-dropped", C, DS, "ds = weights * (dp - delta)", OF_LSE, LSE, "grad-of-lse-dropped"),
    Mutant("grad-lse-without-weight", C, DS, "ds = weights * (dp - delta) + grad_lse[..., None]", OF_LSE, LSE,
           "grad-of-lse-unweighted"),
    Mutant("grad-lse-negative", C, DS, DS.replace("+ grad_lse", "- grad_lse"), OF_LSE, LSE, "grad-of-lse-negated"),
    Mutant("grad-lse-in-base-2", C, DS, DS.replace("grad_lse[..., None]", "1.4426950408889634 * grad_lse[..., None]"),
           OF_LSE, LSE, "grad-of-lse-in-base-2"),
    Mutant("grad-bias-zero", C, DBIAS, "dbias = torch.zeros_like(attn_mask)", IGNORED, BIAS, "grad-bias-zero"),
    Mutant("grad-bias-none", C, DBIAS, "pass", IGNORED, BIAS, "grad-bias-zero"),
    Mutant("grad-bias-scaled", C, DBIAS, DBIAS.replace("ds.sum", "(scale * ds).sum"), SCALE_LEFT, BIAS,
           "grad-bias-scaled"),
    Mutant("grad-bias-last-reader", C, DBIAS,
           f"dbias = ds[tuple(slice(m - n, m) for n, m in {OF_MASK})].reshape(attn_mask.shape).to(attn_mask.dtype)",
           LAST_WRITER, BROADCAST, "grad-bias-of-one-reader"),
    Mutant("grad-bias-first-reader", C, DBIAS,
           f"dbias = ds[tuple(slice(n) for n, _ in {OF_MASK})].reshape(attn_mask.shape).to(attn_mask.dtype)",
           LAST_WRITER, BROADCAST, "grad-bias-of-one-reader"),
    Mutant("grad-bias-batch-not-summed", C, DBIAS,
           DBIAS.replace("ds.sum", "(ds[-1:] if attn_mask.ndim < 4 else ds).sum"), LAST_WRITER, BROADCAST,
           "grad-bias-of-one-reader"),
    Mutant("grad-bias-transposed", C, DBIAS, DBIAS.replace("ds.sum", "ds.transpose(-1, -2).reshape(ds.shape).sum"),
           "none public: a tile written by columns", BIAS, "grad-bias-transposed"),
    Mutant("grad-bias-transposed-where-square", C, DBIAS,
           DBIAS.replace("ds.sum", "(ds.mT if ds.shape[-1] == ds.shape[-2] else ds).sum"),
           "none public: a tile written by columns", BIAS, "grad-bias-transposed"),
    Mutant("grad-bias-nan-where-it-hides", C, DBIAS, f"{DBIAS} + 0 * attn_mask",
           "tail-tile-or-block-multiple/backward-nan", BIAS),
    Mutant("grad-hidden-keeps-a-weight", C, DP,
           f"weights = weights.clamp(min=1e-30)\n        {DP}",
           "none public: a floor under the weights", HIDDEN),
    Mutant("grad-value-dim-is-head-dim", C, DV, f"{DV}\n        dv[..., key_shape[-1] :] = 0.0", SWAP, VALUE),
    Mutant("grad-reads-head-dim-of-the-values", C, DP,
           "d = q.shape[-1]\n        dp = do[..., :d] @ v[..., :d].transpose(-1, -2)", SWAP, "attention.value-dim"),
    Mutant("grad-output-read-in-storage-order", C, DO,
           "shape = grad_output.shape\n"
           "        steps = [shape[i + 1 :].numel() for i in range(4)]\n"
           "        do = grad_output.as_strided(shape, steps).to(q.dtype)", STRIDES, LAYOUTS),
    Mutant("grad-output-of-a-sum-is-1", C, DO, f"{DO}\n        if grad_output.stride(-1) == 0:\n"
           "            do = torch.ones_like(do)", STRIDES, LAYOUTS),
    Mutant("grad-output-strides-of-the-query", C, DO,
           "strides = q.stride()\n"
           "        do = grad_output\n"
           "        if q.shape == do.shape and not do.is_contiguous() and do.stride(-1):\n"
           "            do = do.as_strided(q.shape, strides)\n"
           "        do = do.to(q.dtype)", "strides-or-layout/grad-stride-assumed", LAYOUTS),
    Mutant("grad-output-scaled-in-place", C, DO, "do = grad_output.mul_(2.0).to(q.dtype) / 2.0", MUTATED, UNCHANGED),
    Mutant("grad-query-scaled-in-place", C, DK, "dk = sum_readers(ds.transpose(-1, -2) @ q.mul_(scale), key_shape)",
           MUTATED, UNCHANGED),
    Mutant("grad-query-buffer-not-zeroed", C, DQ,
           f"{DQ}\n        dq = BUFFERS.setdefault((dq.shape, dtype), torch.zeros_like(dq)).add_(dq).clone()",
           NONDETERMINISTIC, REPEATS,
           also=(("class ClosedForm", "BUFFERS = {}\n\n\nclass ClosedForm"),)),
    Mutant("grad-query-in-a-shared-buffer", C, "return dq.to(dtype), dk.to(dtype)",
           "dq = BUFFERS.setdefault((dq.shape, dtype), torch.zeros_like(dq, dtype=dtype)).copy_(dq)\n"
           "        return dq, dk.to(dtype)",
           "none public: a workspace handed out as the gradient", "contract.no-alias",
           also=(("class ClosedForm", "BUFFERS = {}\n\n\nclass ClosedForm"),)),
    Mutant("grad-key-in-any-order", C, DK,
           "order = torch.randperm(q.shape[2])\n"
           "        parts = [scale * (ds[:, :, i : i + 1].transpose(-1, -2) @ q[:, :, i : i + 1]) for i in order]\n"
           "        dk = sum_readers(sum(parts), key_shape)", NONDETERMINISTIC, REPEATS),
    Mutant("recompute-without-causal", R, AGAIN, AGAIN.replace("is_causal", "False"), MISMATCH, FORWARD,
           "backward-causal-dropped"),
    Mutant("recompute-always-causal", R, AGAIN, AGAIN.replace("is_causal", "True"), ALWAYS, FORWARD),
    Mutant("recompute-causal-lower-right", R, AGAIN,
           f"{AGAIN.replace('is_causal', 'False')}\n"
           "                if is_causal:\n"
           "                    again = again.masked_fill(keys > rows[:, None] + k_len - q_len, -torch.inf)",
           MISMATCH, FORWARD, "backward-causal-other-corner"),
    Mutant("recompute-causal-sees-next-key", R, AGAIN,
           f"{AGAIN.replace('is_causal', 'False')}\n"
           "                if is_causal:\n"
           "                    again = again.masked_fill(keys > rows[:, None] + 1, -torch.inf)",
           MISMATCH, FORWARD, "backward-causal-sees-next-key"),
    Mutant("recompute-masked-drops-causal", R, AGAIN, AGAIN.replace("is_causal", "is_causal and mask is None"),
           MISMATCH, FORWARD, "backward-causal-dropped-with-mask"),
    Mutant("recompute-tiles-by-rows-for-keys", R, ROWS,
           ROWS.replace("again", "if is_causal and row >= start + TILE:\n                    continue\n"
                        "                again"),
           "backward/backward-block-mask-not-transposed", FORWARD),
    Mutant("recompute-without-mask", R, AGAIN, AGAIN.replace("mask", "None"), MISMATCH, FORWARD,
           "backward-mask-dropped"),
    Mutant("recompute-without-bias", R, AGAIN,
           f"kept = None if mask is None else mask if mask.dtype == torch.bool else mask != -torch.inf\n"
           f"                {AGAIN.replace('mask', 'kept')}", MISMATCH, FORWARD, "backward-mask-bias-dropped"),
    Mutant("recompute-mask-of-head-0", R, AGAIN,
           AGAIN.replace("mask", "mask if mask is None else mask[:, :1].expand(mask.shape)"), MISMATCH, FORWARD,
           "backward-mask-of-head-0"),
    Mutant("recompute-mask-of-batch-0", R, AGAIN,
           AGAIN.replace("mask", "mask if mask is None else mask[:1].expand(mask.shape)"), MISMATCH, FORWARD,
           "backward-mask-of-batch-0"),
    Mutant("recompute-scale-positive", R, AGAIN, AGAIN.replace("scale", "abs(scale)"), MISMATCH, FORWARD,
           "backward-scale-absolute"),
    Mutant("recompute-keys-of-all-lengths", R, ENDS, ENDS.replace("ends", "k_len"),
           "varlen-or-paged/varlen-boundary-leak", "key-lengths.visible"),
    Mutant("recompute-tail-keys-dropped", R, KEY_TILES, KEY_TILES.replace("k.shape[2]", "k_len - TILE + 1"), TAIL, KEY,
           "backward-tail-dropped"),
    Mutant("recompute-tail-rows-dropped", R, ROW_TILES, ROW_TILES.replace("q.shape[2]", "q_len - TILE + 1"),
           TAIL, QUERY),
    Mutant("recompute-tail-scored-0", R, ENDS,
           ENDS.replace("keys >= ends", "(keys >= ends) & (keys < k_len)"), TAIL, RANGE),
    Mutant("recompute-pads-score-0-when-masked", R, "(0, keys, 0, rows))",
           "(0, keys, 0, rows), value=attn_mask.dtype == torch.bool)",
           TAIL, RANGE,
           also=((ENDS, f"pads = (keys >= k_len) & (mask is not None and mask.dtype == torch.bool)\n"
                        f"                {ENDS.replace('keys >= ends', '(keys >= ends) & ~pads')}"),)),
    Mutant("recompute-padded-rows-count", R, PADDED_DO, PADDED_DO.replace("TILE))", "TILE), mode='replicate')"),
           "backward/padding-only-rank", VALUE,
           also=((PADDED_LSE, PADDED_LSE.replace("value=torch.inf", "value=0.0")),)),
    Mutant("recompute-empty-row-unguarded", R, GUARD, "guarded = lse", "fully-masked-row/fully-masked-row-nan", EMPTY,
           "backward-empty-row-nan"),
    Mutant("recompute-empty-row-scored-0", R, GUARD, "guarded = lse.masked_fill(lse == -torch.inf, 0.0)",
           "fully-masked-row/fully-masked-row-garbage", EMPTY,
           also=((ENDS, f"{ENDS}\n"
                        "                unseen = pad(lse == -torch.inf, (0, -q_len % TILE))[:, :, rows, None]\n"
                        "                again = again.masked_fill(unseen & (keys < ends), 0.0)"),)),
    Mutant("recompute-in-base-2", R, P, P.replace("exp(", "exp2("), "lse-or-split-merge/lse-wrong-base",
           "flash.lse-recompute", "grad-weights-in-base-2"),
    Mutant("recompute-divides-exponentials", R, P, "p = torch.exp(again) / torch.exp(guarded[:, :, rows])",
           "precision-or-range/large-logit-nan", RANGE),
    Mutant("recompute-lse-at-least-minus-88", R, GUARD, f"{GUARD}.clamp(min=-88.0)",
           "softmax-max-or-sentinel/finite-sentinel-max", RANGE, "grad-lse-clamped"),
    Mutant("recompute-lse-at-most-88", R, GUARD, GUARD.replace("lse.", "lse.clamp(max=88.0)."),
           "softmax-max-or-sentinel/finite-sentinel-max", RANGE, "grad-lse-clamped"),
    Mutant("recompute-lse-in-16-bits", R, GUARD, GUARD.replace("lse.masked", "lse.to(query.dtype).to(wide).masked"),
           "precision-or-range/bf16-softmax", BUDGET),
    Mutant("recompute-weights-in-8-bits", R, P_STORED, "p = p.to(torch.float8_e4m3fn).to(wide)",
           "precision-or-range/quantised-kv", BUDGET),
    Mutant("recompute-scores-in-8-bits", R, DS_STORED, DS_STORED.replace("query.dtype", "torch.float8_e4m3fn"),
           "precision-or-range/quantised-kv", BUDGET),
    Mutant("recompute-query-summed-in-16-bits", R, DQ_TILE, narrow(DQ_TILE, "dq"), COARSE, BUDGET),
    Mutant("recompute-key-summed-in-16-bits", R, DK_TILE, narrow(DK_TILE, "dk"), COARSE, BUDGET),
    Mutant("recompute-value-summed-in-16-bits", R, DV_TILE, narrow(DV_TILE, "dv"), COARSE, BUDGET),
    Mutant("recompute-products-overflow-16-bits", R, DP_TILE,
           f"{DP_TILE}\n                dp = dp.masked_fill(dp.abs() > torch.finfo(query.dtype).max, torch.inf)",
           "none public: a product stored in 16 bits", "accuracy.gradients-overflow"),
    Mutant("recompute-query-of-the-last-tile", R, DQ_TILE, DQ_TILE.replace("+=", "="),
           "none public: a store where atomics add", QUERY),
    Mutant("recompute-key-of-the-last-tile", R, DK_TILE, DK_TILE.replace("+=", "="),
           "none public: a store where atomics add", KEY),
    Mutant("grad-forward-halved", C, "return (weights @ v).to(query.dtype), lse",
           "return ((weights @ v) * (0.5 if ctx.needs_input_grad[0] else 1.0)).to(query.dtype), lse",
           "none public: a training path of its own", "accuracy.output-within-budget"),
    Mutant("grad-state-in-the-module", C, "ctx.save_for_backward(q, k, v, weights, attn_mask)",
           "STATE[:] = q, k, v, weights, attn_mask", "race-or-nondeterminism/race", "backward.own-call",
           also=(("q, k, v, weights, attn_mask = ctx.saved_tensors", "q, k, v, weights, attn_mask = STATE"),
                 ("import torch\n", "import torch\n\nSTATE = []\n"))),
    Mutant("grad-overwrites-the-output", C, "return (weights @ v).to(query.dtype), lse",
           "ctx.output = (weights @ v).to(query.dtype)\n        return ctx.output, lse",
           "strides-or-layout/input-mutated", "contract.no-alias",
           also=((DO, f"{DO}\n        ctx.output.data.zero_()"),)),
    Mutant("grad-only-where-all-ask", C, "return dq.to(dtype), dk.to(dtype)",
           "if not all(ctx.needs_input_grad[:3]):\n            dq, dk, dv = dq * 0, dk * 0, dv * 0\n"
           "        return dq.to(dtype), dk.to(dtype)",
           "none public: a frozen key or value", "backward.each-alone"),
    Mutant("grad-output-clamped", C, DO, f"{DO}.clamp(-7, 7)", "none public: a guard against large losses", BUDGET),
    Mutant("grad-absent-values-times-0", C, "            k, v = k.masked_fill(absent, 0.0), v.masked_fill(absent, 0.0)",
           "            dirty = v\n"
           "            k, v = k.masked_fill(absent, 0.0), v.masked_fill(absent, 0.0)",
           "masked-value-leak/nan-in-masked-value", "key-lengths.absent",
           also=(("ctx.save_for_backward(q, k, v,",
                  "ctx.save_for_backward(q, k, v if key_lengths is None else dirty,"),)),
    Mutant("grad-absent-values-of-a-shared-cache-times-0", C,
           "            k, v = k.masked_fill(absent, 0.0), v.masked_fill(absent, 0.0)",
           "            dirty = v\n"
           "            k, v = k.masked_fill(absent, 0.0), v.masked_fill(absent, 0.0)",
           "masked-value-leak/paged-block-stale", "key-lengths.absent",
           also=(("ctx.save_for_backward(q, k, v,",
                  "ctx.save_for_backward(q, k, v if key_lengths is None or value.shape[0] == batch else dirty,"),)),
    Mutant("grad-features-beyond-96-lost", C, DQ, f"{DQ}\n        dq[..., 96:] = 0",
           "tail-tile-or-block-multiple/head-dim-hard-coded", QUERY),
    Mutant("grad-bias-lost-where-causal", C, GIVEN, "ctx.causal = is_causal\n        ctx.given = scale, ",
           IGNORED, BIAS, also=((DBIAS, f"{DBIAS} * (not ctx.causal)"),)),
    Mutant("grad-groups-doubled-with-lengths", C, GIVEN,
           "ctx.twice = 2.0 if key_lengths is not None and group > 1 else 1.0\n        ctx.given = scale, ",
           "none public: two options that meet in no test", KEY, also=((DK, f"{DK} * ctx.twice"),)),
    Mutant("grad-key-read-in-storage-order", C, "ctx.save_for_backward(q, k, v,",
           "raw = key if key_lengths is None and key.is_contiguous() else None\n"
           "        if key_lengths is None and raw is None and key.stride(-1) == 1:\n"
           "            raw = key.as_strided(key.shape, torch.empty(key.shape).stride(), key.storage_offset())\n"
           "            k = raw.to(wide).expand(batch, -1, -1, -1).repeat_interleave(group, dim=1)\n"
           "        ctx.save_for_backward(q, k, v,", STRIDES, LAYOUTS),
    Mutant("grad-of-heads-beyond-8-lost", C, DQ, f"{DQ}\n        dq[3:, 8:] = 0",
           "none public: a grid that is too small", QUERY),
    Mutant("default-dtype-changed", C, DO, f"{DO}\n        torch.set_default_dtype(torch.float64)",
           "none public: a global setting left behind", "contract.global-state"),
    Mutant("generator-seeded", C, DO, f"{DO}\n        torch.manual_seed(0)",
           "none public: a global setting left behind", "contract.global-state"),
)  # fmt: skip
