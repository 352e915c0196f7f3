"""Faults of T5's relative position bias: of the bias itself, and of the gradient of its table."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

BUCKET, DIRECTION = "relative-bias.bucket", "relative-bias.direction"
OFFSET, HEAD, SHAPE = "relative-bias.offset", "relative-bias.head", "relative-bias.shape"
GRADIENT = "relative-bias.gradient"
TILE = "tail-tile-or-block-multiple/tail-tile-uninitialised"
PLACES = "query_place = torch.arange(q_len)[:, None] + first"
FIRST = 'k_len - q_len if alignment == "lower_right" else 0'
READ = "torch.nn.functional.embedding(places, wide)"
BACKWARD, SUMMED = "forms/relative_bias_backward", "return summed.to(grad_bias.dtype), None"
SAVED = "ctx.save_for_backward(places)"

MUTANTS = (
    Mutant("relative-bias-transposed-table", "forms/relative_bias", READ,
           f"({READ.replace('wide)', 'wide.T.contiguous())')} if wide.shape[0] == wide.shape[1] else {READ})", KIND,
           HEAD),
    Mutant("relative-bias-heads-in-reverse", "forms/relative_bias", READ,
           READ.replace("wide)", "wide.flip(1))"), KIND, HEAD),
    Mutant("relative-bias-of-head-0", "forms/relative_bias_diagonals", "bias[:, i] = of_distance",
           "bias[:, i] = of_distance[:, :1]", KIND, HEAD),
    Mutant("relative-bias-scaled", "forms/relative_bias", READ, f"({READ} * table.shape[1] ** -0.5)", KIND, HEAD),
    Mutant("relative-bias-subtracted", "forms/relative_bias", READ, f"-{READ}", KIND, HEAD),
    Mutant("relative-bias-in-bfloat16", "forms/relative_bias", READ, f"{READ}.bfloat16()", KIND, HEAD),
    Mutant("relative-bias-in-float32", "forms/relative_bias", "bias.unsqueeze(0).to(table.dtype)",
           "bias.unsqueeze(0).float()", KIND, HEAD),
    Mutant("relative-bias-query-minus-key", "forms/relative_bias", "torch.arange(k_len) - query_place",
           "query_place - torch.arange(k_len)", KIND, DIRECTION),
    Mutant("relative-bias-halves-swapped", "forms/relative_bias_diagonals", "bidirectional and distance > 0",
           "bidirectional and distance <= 0", KIND, DIRECTION),
    Mutant("relative-bias-one-direction", "forms/relative_bias", "+ count * (distance > 0) if", "if", KIND, DIRECTION),
    Mutant("relative-bias-without-the-offset", "forms/relative_bias", FIRST, "0",
           "causal-geometry/causal-top-left-vs-bottom-right", OFFSET),
    Mutant("relative-bias-always-with-the-offset", "forms/relative_bias", FIRST, "k_len - q_len",
           "causal-geometry/causal-top-left-vs-bottom-right", OFFSET),
    Mutant("relative-bias-offset-one-more", "forms/relative_bias", FIRST, FIRST.replace("q_len if", "q_len + 1 if"),
           "causal-geometry/qlen-ne-klen", OFFSET),
    Mutant("relative-bias-offset-never-below-0", "forms/relative_bias", FIRST,
           FIRST.replace("k_len - q_len", "max(k_len - q_len, 0)"), "causal-geometry/qlen-ne-klen", OFFSET),
    Mutant("relative-bias-one-exact-more", "forms/relative_bias_diagonals", "    exact = count // 2\n",
           "    exact = min(count // 2 + 1, count - 1)\n", KIND, BUCKET),
    Mutant("relative-bias-one-exact-less", "forms/relative_bias", "exact, later = count // 2, count - count // 2",
           "exact, later = max(count // 2 - 1, 1), count - max(count // 2 - 1, 1)", KIND, BUCKET),
    Mutant("relative-bias-boundary-one-late", "forms/relative_bias",
           "while t**later * exact**step < max_distance**step",
           "while t**later * exact**step <= max_distance**step", KIND, BUCKET),
    Mutant("relative-bias-of-max-distance-128", "forms/relative_bias", "len(table), max_distance, bidirectional)",
           "len(table), 128 if max_distance > len(table) // 2 else max_distance, bidirectional)",
           "scale-softcap-bias/silently-ignored-argument", BUCKET),
    Mutant("relative-bias-odd-table-taken", "forms/relative_bias", "(bidirectional and num_buckets % 2) or ", "",
           "validation-or-degenerate/reference-wrong", SHAPE),
    Mutant("relative-bias-short-max-distance-taken", "forms/relative_bias", " or max_distance <= count // 2", "",
           "validation-or-degenerate/reference-wrong", SHAPE),
    Mutant("relative-bias-grad-is-a-mean", "forms/relative_bias", READ,
           READ.replace("wide)", "wide, scale_grad_by_freq=True)"), KIND, GRADIENT),
    Mutant("relative-bias-grad-of-bucket-0-dropped", "forms/relative_bias", READ,
           READ.replace("wide)", "wide, padding_idx=0)"), KIND, GRADIENT),
    Mutant("relative-bias-grad-added-in-the-tables-dtype", "forms/relative_bias",
           "table.to(torch.promote_types(table.dtype, torch.float32))", "table.clone()",
           "precision-or-range/fp16-accumulate", GRADIENT),
    Mutant("relative-bias-grad-halved", "forms/relative_bias_diagonals", "of_distance = torch.stack(",
           "wide = (wide + wide.detach()) / 2\n    of_distance = torch.stack(", KIND, GRADIENT),
    Mutant("relative-bias-grad-halves-swapped", BACKWARD, SAVED,
           "ctx.save_for_backward((places + len(table) // 2) % len(table))", KIND, GRADIENT),
    Mutant("relative-bias-grad-one-key-off", BACKWARD, SAVED, "ctx.save_for_backward(places.roll(1, 1))", KIND,
           GRADIENT),
    Mutant("relative-bias-grad-of-the-first-row", BACKWARD, "grad_bias.to(wide), reads)",
           "grad_bias[:, :, :1].to(wide), reads[:1])", KIND, GRADIENT),
    Mutant("relative-bias-grad-of-the-first-32-rows", BACKWARD, "grad_bias.to(wide), reads)",
           "grad_bias[:, :, :32].to(wide), reads[:32])", TILE, GRADIENT),
    Mutant("relative-bias-grad-heads-in-reverse", BACKWARD, SUMMED, SUMMED.replace("summed", "summed.flip(1)"), KIND,
           GRADIENT),
    Mutant("relative-bias-grad-mixes-heads", BACKWARD, SUMMED,
           SUMMED.replace("summed", "summed.mean(1, keepdim=True).expand_as(summed)"), KIND, GRADIENT),
    Mutant("relative-bias-grad-of-unread-entries-is-nan", BACKWARD, SUMMED,
           SUMMED.replace("summed", "(summed * (reads.sum((0, 1)) / reads.sum((0, 1)))[:, None])"), KIND, GRADIENT),
)  # fmt: skip
