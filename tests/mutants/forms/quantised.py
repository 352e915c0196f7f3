"""Faults of attention over quantised keys and values."""

from mutants.house import Mutant

KIND = "precision-or-range/quantised-kv"
DEQUANTISE, GRANULARITY, ABSENT = "quantised.dequantise", "quantised.granularity", "quantised.absent"
SHAPE, BUDGET = "quantised.scale-shape", "accuracy.quantised-within-budget"
KEYS = "keys = dequantised(key, key_scale, wide, absent)"
VALUES = "values = dequantised(value, value_scale, wide, absent)"
PRODUCT = "numbers = stored.to(dtype) * scale.to(dtype)"
SCORES = "query.to(wide) @ keys.transpose(-1, -2) * scale"
CHECK = "if scale.ndim and not fits:"
STORED = "if stored.dtype not in (torch.int8, torch.float8_e4m3fn) or not scale.dtype.is_floating_point:"
OUTPUT = "output = weights @ values"
FUNCTION, BACK = "forms/quantised_function", "quantised.backward"
TO_QUERY, TO_WEIGHTS = "grad_query = grad_scores @ keys * ctx.scale", "weights * (flow @ values.mT - delta"
TO_LSE, DELTA = "+ grad_lse[..., None])", "delta = (flow * output).sum(-1, keepdim=True)"
AGAIN = "(q @ keys.mT * ctx.scale).masked_fill(~visible"
NO_LSE = "none public: few kernels give the lse a gradient"
TILE = "tail-tile-or-block-multiple/tail-tile-uninitialised"
GRAINS = {  # which dimensions of a scale are larger than 1
    "tensor": "[]",
    "head": "[0, 1, 0, 0]",
    "batch-head": "[1, 1, 0, 0]",
    "channel": "[0, 1, 0, 1]",
    "token": "[1, 1, 1, 0]",
}
DTYPES = {"int8": "int8", "e4m3": "float8_e4m3fn"}


def of_keys(scale: str) -> str:
    """The gradient of the query with other scales of the keys than in the scores."""
    return TO_QUERY.replace("keys", f"of_heads(key, {scale}, q, visible)")


def of_values(scale: str) -> str:
    """The gradient of the weights with other scales of the values than in the output."""
    return TO_WEIGHTS.replace("values", f"of_heads(value, {scale}, q, visible)")


def squared(name: str, grain: str, stored: str) -> str:
    """A scale, twice where it is of this grain and scales numbers of this dtype."""
    fits = f"{name}.dtype == torch.{DTYPES[stored]} and [n > 1 for n in {name}_scale.shape] == {GRAINS[grain]}"
    return f"{name}_scale ** (2 if {fits} else 1)"


MUTANTS = (
    Mutant("quantised-scale-of-head-0", "forms/quantised", PRODUCT,
           PRODUCT.replace("scale.to", "(scale[:, :1] if scale.ndim else scale).to"), KIND, DEQUANTISE),
    Mutant("quantised-value-scale-of-another-head", "forms/quantised", VALUES,
           VALUES.replace("value_scale", "value_scale.roll(1, 1) if value_scale.ndim else value_scale"), KIND,
           DEQUANTISE),
    Mutant("quantised-scale-of-batch-0", "forms/quantised", PRODUCT,
           PRODUCT.replace("scale.to", "(scale[:1] if scale.ndim else scale).to"), KIND, DEQUANTISE),
    Mutant("quantised-scale-dropped-after-batch-0", "forms/quantised", PRODUCT,
           PRODUCT.replace("scale.to(dtype)", "torch.where(torch.arange(len(stored)).reshape(-1, 1, 1, 1) == 0, scale, "
                           "scale.mean()).to(dtype)"), KIND, DEQUANTISE),
    Mutant("quantised-scale-of-the-query-head", "forms/quantised_folded", "part(x, b, h // group)", "part(x, b, h)",
           KIND, DEQUANTISE),
    Mutant("quantised-value-scale-for-keys", "forms/quantised", KEYS,
           KEYS.replace("key_scale", "value_scale if value_scale.shape == key_scale.shape else key_scale"), KIND,
           DEQUANTISE),
    Mutant("quantised-key-scale-for-values", "forms/quantised", VALUES,
           VALUES.replace("value_scale", "key_scale if value_scale.shape == key_scale.shape else value_scale"), KIND,
           DEQUANTISE),
    Mutant("quantised-key-scale-forgotten", "forms/quantised", KEYS, KEYS.replace("key_scale", "0 * key_scale + 1"),
           KIND, DEQUANTISE),
    Mutant("quantised-value-scale-forgotten", "forms/quantised", VALUES,
           VALUES.replace("value_scale", "0 * value_scale + 1"), KIND, DEQUANTISE),
    Mutant("quantised-key-scale-twice", "forms/quantised", KEYS, KEYS.replace("key_scale", "key_scale ** 2"), KIND,
           DEQUANTISE),
    Mutant("quantised-value-scale-twice", "forms/quantised", VALUES, VALUES.replace("value_scale", "value_scale ** 2"),
           KIND, DEQUANTISE),
    Mutant("quantised-divided-by-the-scale", "forms/quantised", PRODUCT, PRODUCT.replace("*", "/"), KIND, DEQUANTISE),
    Mutant("quantised-key-scale-after-the-softmax", "forms/quantised", KEYS, KEYS.replace("key_scale", "one"), KIND,
           DEQUANTISE, also=(("    k_len, group =", "    one = torch.ones_like(key_scale)\n    k_len, group ="),
                             (OUTPUT, "output = weights @ values * key_scale.mean()"))),
    Mutant("quantised-key-scale-replaces-the-softmax-scale", "forms/quantised_folded",
           "* scale * (1.0 if by_token else of_key)", "* (scale if by_token else of_key)", KIND, DEQUANTISE),
    Mutant("quantised-value-scale-divides-nothing", "forms/quantised_folded", "mixed / total *",
           "mixed / (total / total.amax()) *", KIND, DEQUANTISE),
    Mutant("quantised-channels-read-as-tokens", "forms/quantised", PRODUCT,
           "scale = scale.mT if scale.ndim and scale.shape[2] * scale.shape[3] > 1 and scale.shape[2] == 1 else scale\n"
           "    " + PRODUCT, KIND, DEQUANTISE),
    Mutant("quantised-tokens-read-as-channels", "forms/quantised", PRODUCT,
           "scale = scale.mT if scale.ndim and scale.shape[2] == stored.shape[3] else scale\n    " + PRODUCT, KIND,
           DEQUANTISE),
    Mutant("quantised-tile-scales-from-its-start", "forms/quantised_folded", "scores = scores * of_key[tile].T",
           "scores = scores * of_key[: tile.stop - start].T", KIND, DEQUANTISE),
    Mutant("quantised-first-tile-alone-is-scaled", "forms/quantised_folded",
           "(shift * of_value[tile].T if by_value_token else shift)",
           "(shift * of_value[tile].T if by_value_token and not start else shift)", KIND, DEQUANTISE),
    Mutant("quantised-int8-read-without-sign", "forms/quantised", PRODUCT,
           "stored = stored.view(torch.uint8) if stored.dtype == torch.int8 else stored\n    " + PRODUCT, KIND,
           DEQUANTISE),
    Mutant("quantised-e4m3-read-as-e5m2", "forms/quantised", PRODUCT,
           "stored = stored.view(torch.float8_e5m2) if stored.dtype == torch.float8_e4m3fn else stored\n    " + PRODUCT,
           KIND, DEQUANTISE),
    Mutant("quantised-e4m3-read-as-int8", "forms/quantised", PRODUCT,
           "stored = stored.view(torch.int8)\n    " + PRODUCT, KIND, DEQUANTISE),
    Mutant("quantised-zero-point-of-128", "forms/quantised", PRODUCT,
           "zero = 128 if stored.dtype == torch.int8 else 0\n    numbers = (stored.to(dtype) - zero) * scale.to(dtype)",
           KIND, DEQUANTISE),
    Mutant("quantised-zero-point-of-1", "forms/quantised", PRODUCT,
           "numbers = (stored.to(dtype) + 1) * scale.to(dtype)", KIND, DEQUANTISE),
    Mutant("quantised-lowest-int8-cut", "forms/quantised", PRODUCT,
           "lowest = -127 if stored.dtype == torch.int8 else -448\n"
           "    numbers = stored.to(dtype).clamp(min=lowest) * scale.to(dtype)", KIND, DEQUANTISE),
    Mutant("quantised-e4m3-ends-at-240", "forms/quantised", PRODUCT,
           "largest = 127 if stored.dtype == torch.int8 else 240\n"
           "    numbers = stored.to(dtype).clamp(-largest - 1, largest) * scale.to(dtype)", KIND, DEQUANTISE),
    Mutant("quantised-without-e4m3-subnormals", "forms/quantised", PRODUCT,
           "codes = stored.to(dtype)\n    numbers = torch.where(codes.abs() < 2.0**-6, 0.0, codes) * scale.to(dtype)",
           KIND, DEQUANTISE),
    Mutant("quantised-values-rounded-to-integers", "forms/quantised", PRODUCT,
           "numbers = stored.to(torch.int8).to(dtype) * scale.to(dtype)", KIND, DEQUANTISE),
    Mutant("quantised-head-of-keys-by-stride", "forms/quantised", "values.repeat_interleave(group, 1)",
           "values.repeat(1, group, 1, 1)", KIND, "grouped.head-map",
           also=(("keys.repeat_interleave(group, 1)", "keys.repeat(1, group, 1, 1)"),)),
    Mutant("quantised-causal-dropped", "forms/quantised", "if is_causal:", "if False:", KIND, DEQUANTISE),
    Mutant("quantised-softmax-scale-dropped", "forms/quantised", "if scale is None else scale\n    scores",
           "\n    scores", KIND, DEQUANTISE),
    Mutant("quantised-another-path-for-channels", "forms/quantised", PRODUCT,
           "scale = scale * (0.5 if scale.ndim and 1 < scale.shape[3] else 1)\n    " + PRODUCT, KIND, GRANULARITY),
    Mutant("quantised-head-scales-halved", "forms/quantised", PRODUCT,
           "scale = scale / (scale.shape[1] if scale.ndim else 1)\n    " + PRODUCT, KIND, GRANULARITY),
    Mutant("quantised-token-scales-normalised", "forms/quantised_folded",
           "(shift * of_value[tile].T if by_value_token else shift)",
           "(shift * of_value[tile].T / of_value.amax() if by_value_token else shift)", KIND, GRANULARITY),
    Mutant("quantised-absent-weighted-0", "forms/quantised",
           "numbers if absent is None else torch.where(absent[:, None, :, None], 0.0, numbers)", "numbers", KIND,
           ABSENT),
    Mutant("quantised-absent-codes-cleared-before-the-scale", "forms/quantised", PRODUCT,
           "codes = stored.to(dtype)\n    if absent is not None:\n"
           "        codes = torch.where(absent[:, None, :, None], 0.0, codes)\n    numbers = codes * scale.to(dtype)",
           KIND, ABSENT,
           also=(("numbers if absent is None else torch.where(absent[:, None, :, None], 0.0, numbers)", "numbers"),)),
    Mutant("quantised-absent-seen", "forms/quantised", "if absent is not None:", "if False:", KIND, ABSENT),
    Mutant("quantised-lengths-of-the-last-batch", "forms/quantised_folded", "int(key_lengths[b])",
           "int(key_lengths[-1])", KIND, ABSENT),
    Mutant("quantised-last-tile-whole", "forms/quantised_folded", "min(start + TILE, length)",
           "min(start + TILE, key.shape[2])", KIND, ABSENT),
    Mutant("quantised-no-keys-is-nan", "forms/quantised_folded", "if length:", "if True:", KIND, "key-lengths.zero"),
    Mutant("quantised-nan-becomes-0", "forms/quantised", PRODUCT, PRODUCT + "\n    numbers = numbers.nan_to_num(0.0)",
           KIND, "mask.visible-nan"),
    Mutant("quantised-product-in-bfloat16", "forms/quantised", PRODUCT,
           "numbers = (stored.to(dtype) * scale.to(dtype)).bfloat16().to(dtype)", KIND, BUDGET),
    Mutant("quantised-scale-in-float16", "forms/quantised", PRODUCT,
           PRODUCT.replace("scale.to(dtype)", "scale.half().to(dtype)"), KIND, BUDGET),
    Mutant("quantised-weights-in-e4m3", "forms/quantised", OUTPUT,
           "output = weights.to(torch.float8_e4m3fn).to(wide) @ values", KIND, BUDGET),
    Mutant("quantised-weights-in-int8", "forms/quantised", OUTPUT, "output = torch.round(weights * 127) / 127 @ values",
           KIND, BUDGET),
    Mutant("quantised-query-in-e4m3", "forms/quantised", SCORES,
           "query.to(torch.float8_e4m3fn).to(wide) @ keys.transpose(-1, -2) * scale", KIND, BUDGET),
    Mutant("quantised-returns-float32", "forms/quantised", "output.to(query.dtype), lse", "output.float(), lse", KIND,
           BUDGET),
    Mutant("quantised-broadcasts-any-scale", "forms/quantised", CHECK, "if False:", KIND, SHAPE),
    Mutant("quantised-takes-scales-of-heads-without-axes", "forms/quantised", CHECK,
           "if scale.ndim == 2:\n        scale = scale[..., None, None]\n    elif scale.ndim and not fits:", KIND,
           SHAPE),
    Mutant("quantised-reads-the-first-scales", "forms/quantised", CHECK,
           "if scale.ndim == 4 and not fits:\n        scale = scale[:, : stored.shape[1]]\n"
           "    elif scale.ndim and not fits:", KIND, SHAPE),
    Mutant("quantised-takes-any-dtype", "forms/quantised", STORED, "if False:", KIND, SHAPE),
    Mutant("quantised-takes-unsigned", "forms/quantised", STORED,
           STORED.replace("torch.int8,", "torch.int8, torch.uint8,"), KIND, SHAPE),
    Mutant("quantised-gradient-by-stored-keys", FUNCTION, TO_QUERY, of_keys("torch.ones_like(key_scale)"), KIND, BACK),
    Mutant("quantised-gradient-with-the-key-scale-twice", FUNCTION, TO_QUERY, of_keys("key_scale**2"), KIND, BACK),
    Mutant("quantised-gradient-with-the-value-scale-for-keys", FUNCTION, TO_QUERY,
           of_keys("value_scale if value_scale.shape == key_scale.shape else key_scale"), KIND, BACK),
    Mutant("quantised-gradient-with-the-scale-of-another-head", FUNCTION, TO_QUERY,
           of_keys("key_scale.roll(1, 1) if key_scale.ndim else key_scale"), KIND, BACK),
    Mutant("quantised-gradient-with-the-scale-of-head-0", FUNCTION, TO_QUERY,
           of_keys("key_scale[:, :1] if key_scale.ndim else key_scale"), KIND, BACK),
    Mutant("quantised-gradient-with-the-scales-of-batch-0", FUNCTION, TO_QUERY,
           of_keys("key_scale[:1] if key_scale.ndim else key_scale"), KIND, BACK),
    Mutant("quantised-gradient-reads-channels-as-tokens", FUNCTION, TO_QUERY,
           of_keys("key_scale.mT if key_scale.ndim and key_scale.shape[3] == key.shape[2] else key_scale"), KIND, BACK),
    Mutant("quantised-gradient-with-the-mean-of-the-channels", FUNCTION, TO_QUERY,
           of_keys("key_scale.mean(-1, keepdim=True) if key_scale.ndim else key_scale"), KIND, BACK),
    Mutant("quantised-gradient-by-stored-values", FUNCTION, TO_WEIGHTS,
           of_values("torch.ones_like(value_scale)"), KIND, BACK),
    Mutant("quantised-gradient-without-the-softmax-scale", FUNCTION, TO_QUERY, "grad_query = grad_scores @ keys",
           KIND, BACK),
    Mutant("quantised-gradient-with-the-softmax-scale-twice", FUNCTION, TO_QUERY, f"{TO_QUERY}**2", KIND, BACK),
    Mutant("quantised-gradient-with-the-scale-without-its-sign", FUNCTION, TO_QUERY,
           TO_QUERY.replace("ctx.scale", "abs(ctx.scale)"), "scale-softcap-bias/silently-ignored-argument", BACK),
    Mutant("quantised-gradient-is-half", FUNCTION, TO_QUERY, f"{TO_QUERY} / 2", KIND, BACK),
    Mutant("quantised-gradient-is-0", FUNCTION, TO_QUERY, f"{TO_QUERY} * 0", KIND, BACK),
    Mutant("quantised-gradient-without-delta", FUNCTION, DELTA, "delta = 0.0", KIND, BACK),
    Mutant("quantised-gradient-with-the-delta-of-the-row-before", FUNCTION, DELTA, f"{DELTA}.roll(1, -2)", KIND, BACK),
    Mutant("quantised-gradient-of-the-lse-dropped", FUNCTION, TO_LSE, ")", NO_LSE, BACK),
    Mutant("quantised-gradient-of-the-lse-subtracted", FUNCTION, TO_LSE, TO_LSE.replace("+", "-"), NO_LSE, BACK),
    Mutant("quantised-gradient-sees-the-future", FUNCTION, AGAIN, AGAIN.replace("visible", "visible.any(-2, True)"),
           "backward/fwd-bwd-mask-mismatch", BACK),
    Mutant("quantised-gradient-multiplies-absent-keys-by-0", FUNCTION, TO_QUERY,
           of_keys("key_scale").replace("visible", "torch.ones_like(visible)"),
           "masked-value-leak/nan-in-masked-value", BACK),
    Mutant("quantised-gradient-of-no-keys-is-nan", FUNCTION, DELTA, f"{DELTA} + 0 * lse",
           "tail-tile-or-block-multiple/backward-nan", BACK),
    Mutant("quantised-gradient-with-heads-in-turn", FUNCTION, TO_QUERY,
           TO_QUERY.replace("keys", "keys.unflatten(1, (key.shape[1], -1)).transpose(1, 2).flatten(1, 2)"),
           "gqa-heads/gqa-head-order", BACK),
    Mutant("quantised-gradient-of-products-in-bfloat16", FUNCTION, TO_QUERY,
           TO_QUERY.replace("keys", "keys.bfloat16().to(q.dtype)"), KIND, BACK),
    Mutant("quantised-gradient-with-ds-in-e4m3", FUNCTION, TO_QUERY,
           TO_QUERY.replace("grad_scores", "grad_scores.to(torch.float8_e4m3fn).to(q.dtype)"), KIND, BACK),
    *(Mutant(f"quantised-gradient-with-the-{stored}-key-scale-of-a-{grain}-twice", FUNCTION, TO_QUERY,
             of_keys(squared("key", grain, stored)), KIND, BACK) for stored in DTYPES for grain in GRAINS),
    *(Mutant(f"quantised-gradient-with-the-{stored}-value-scale-of-a-{grain}-twice", FUNCTION, TO_WEIGHTS,
             of_values(squared("value", grain, stored)), KIND, BACK) for stored in DTYPES for grain in GRAINS),
    Mutant("quantised-gradient-of-the-first-64-keys", FUNCTION, TO_QUERY,
           TO_QUERY.replace("grad_scores", "(grad_scores * (torch.arange(key.shape[2]) < 64))"), TILE, BACK),
    Mutant("quantised-gradient-of-the-first-16-rows", FUNCTION, TO_QUERY,
           f"{TO_QUERY} * (torch.arange(q.shape[2]) < 16)[:, None]", TILE, BACK),
)  # fmt: skip
