"""Faults of packed attention."""

from mutants.house import Mutant

NONE = "none public: the survey has one report of packs that leak, and none of this place"
LEAK, ZERO = "varlen-or-paged/varlen-boundary-leak", "varlen-or-paged/zero-length-kv"
CORNER, HEADS = "causal-geometry/causal-top-left-vs-bottom-right", "gqa-heads/gqa-head-order"
ACCEPTED, ONE_OFF = "validation-or-degenerate/silently-accepted", "sliding-window-bound/window-off-by-one"
TILE = "tail-tile-or-block-multiple/tail-tile-not-masked"
SEPARATE, CAUSAL, WINDOW, EMPTY, BOUNDARIES, LENGTHS, TAIL, BACK = (
    f"packed.{name}"
    for name in ("separate", "causal", "window", "zero-length", "boundaries", "key-lengths", "tail", "backward")
)
LOOP, TILES = "forms/packed", "forms/packed_tiles"

OWN = "own = (place >= start) & (place < end)"
FIRST = "first = starts_k[b]"
PLACES = "rows, columns = checked(cu_seqlens_q, len(query)), checked(cu_seqlens_k, len(key))"
LENGTHS_LINE = "lengths = stored if key_lengths is None else key_lengths.tolist()"
DIAGONAL = 'corner = length - q.shape[1] if causal_alignment == "lower_right" else 0'
OF_THE_PACK = "len(key) - len(query)"
APART = "apart = torch.arange(length) - torch.arange(q.shape[1])[:, None] - corner"
KEY = "k = key[first : first + length].to(wide).transpose(0, 1).repeat_interleave(group, 0)\n"
VALUE = "v = value[first : first + length].to(wide).transpose(0, 1).repeat_interleave(group, 0)\n"
HIDE = "scores = scores.masked_fill(hidden, -torch.inf)"
OUTPUT = "outputs.append((weights @ v).transpose(0, 1))"
LSE = "lses.append(torch.logsumexp(scores.masked_fill(empty[:, None], 0.0), -1).masked_fill(empty, -torch.inf))"
CHECKED = "if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):"
ENDS = "ends = cu_seqlens.tolist()"
IN_RANGE = "if any(not 0 <= length <= most for length, most in zip(lengths, stored, strict=True)):"
LEFT = "if left >= 0:"
SHIFTED = "value.roll(1, 0)[first : first + length].to(wide).transpose(0, 1).repeat_interleave(group, 0)"

MUTANTS = (
    Mutant("packed-sees-the-next-members-first-key", TILES, OWN, OWN.replace("end)", "end + 1)"), LEAK, SEPARATE),
    Mutant("packed-sees-the-last-members-last-key", TILES, OWN, OWN.replace("start)", "start - 1)"), LEAK, SEPARATE),
    Mutant("packed-misses-the-first-key", TILES, OWN, OWN.replace(">= start", "> start"), LEAK, SEPARATE),
    Mutant("packed-sees-whole-tiles", TILES, OWN, "own = place >= 0", LEAK, SEPARATE),
    Mutant("packed-loads-whole-tiles", TILES, "torch.where(own[:, None, None], tensor[place], 0.0)", "tensor[place]",
           "masked-value-leak/nan-in-masked-value", SEPARATE),
    Mutant("packed-last-tile-dropped", TILES, "range(k_start - k_start % TILE, k_end, TILE)",
           "range(k_start - k_start % TILE, k_end - k_end % TILE or k_end, TILE)", TILE, SEPARATE),
    Mutant("packed-boundaries-ignored", TILES, "query[q_start:q_end]", "query[: q_end - q_start]", LEAK, SEPARATE),
    Mutant("packed-keys-begin-with-the-queries", LOOP, FIRST, "first = starts_q[b]", LEAK, SEPARATE),
    Mutant("packed-lengths-of-the-first-member", TILES, PLACES,
           f"{PLACES}\n    columns = [(start, min(start + columns[0][1], len(key))) for start, _ in columns]", LEAK,
           SEPARATE),
    Mutant("packed-drops-the-last-member", LOOP, "enumerate(lengths):", "enumerate(lengths[:-1]):", LEAK, SEPARATE,
           also=(("len(query) - starts_q[-1]", "len(query) - starts_q[-2]"),)),
    Mutant("packed-lse-token-first", LOOP, "torch.cat(lses, 1)", "torch.cat(lses, 1).T",
           "lse-or-split-merge/lse-paths-disagree", SEPARATE),
    Mutant("packed-lse-without-the-maximum", TILES, "torch.log(total) + torch.where(empty, 0.0, top)",
           "torch.log(total * torch.exp(torch.where(empty, 0.0, top)))", "lse-or-split-merge/merge-exp-overflow",
           SEPARATE),
    Mutant("packed-heads-in-turn", LOOP, KEY, KEY.replace("repeat_interleave(group, 0)", "repeat(group, 1, 1)"), HEADS,
           "grouped.head-map"),
    Mutant("packed-scale-of-the-value-dim", LOOP, "query.shape[-1] ** -0.5", "value.shape[-1] ** -0.5",
           "gqa-heads/qk-v-head-dim-swap", "attention.value-dim"),
    Mutant("packed-scale-without-its-sign", TILES, "if scale is None else scale", "if scale is None else abs(scale)",
           "scale-softcap-bias/silently-ignored-argument", "attention.scale-explicit"),
    Mutant("packed-weights-in-bfloat16", LOOP, OUTPUT, OUTPUT.replace("weights @", "weights.bfloat16().to(wide) @"),
           "precision-or-range/bf16-softmax", "accuracy.output-within-budget"),
    Mutant("packed-triangle-of-the-pack", LOOP, APART, f"{APART} + first - starts_q[b]", CORNER, CAUSAL),
    Mutant("packed-corner-always-upper-left", LOOP, 'if causal_alignment == "lower_right" else 0', "if False else 0",
           CORNER, CAUSAL),
    Mutant("packed-corners-swapped", TILES, 'causal_alignment == "lower_right"', 'causal_alignment != "lower_right"',
           CORNER, CAUSAL),
    Mutant("packed-corner-of-the-longest-member", LOOP, DIAGONAL, DIAGONAL.replace("length -", "max(lengths) -"),
           CORNER, CAUSAL),
    Mutant("packed-corner-of-the-pack", LOOP, DIAGONAL, DIAGONAL.replace("length - q.shape[1]", OF_THE_PACK), CORNER,
           CAUSAL),
    Mutant("packed-sees-the-future", LOOP, "right = 0 if is_causal else right", "right = 1 if is_causal else right",
           "none public: the reports of a triangle one off are of padded calls", CAUSAL),
    Mutant("packed-rows-that-see-nothing-are-nan", LOOP,
           "torch.softmax(scores.masked_fill(empty[:, None], 0.0), -1).masked_fill(empty[:, None], 0.0)",
           "torch.softmax(scores, -1)", "fully-masked-row/fully-masked-row-nan", "mask.fully-masked-row"),
    Mutant("packed-window-sides-swapped", LOOP, "left, right = window_size", "right, left = window_size",
           ONE_OFF, WINDOW),
    Mutant("packed-window-one-off", TILES, "apart >= -left", "apart > -left", ONE_OFF,
           WINDOW),
    Mutant("packed-window-drops-the-triangle", TILES, "if is_causal:", "if is_causal and window_size is None:",
           "sliding-window-bound/window-branch-ignores-causal", WINDOW),
    Mutant("packed-window-of-the-pack", TILES, "visible = visible & (apart >= -left)",
           "visible = visible & (apart >= -left + k_start - q_start)", ONE_OFF, WINDOW),
    Mutant("packed-empty-members-go-last", TILES, "return list(pairwise(cu_seqlens.tolist()))",
           "return sorted(pairwise(cu_seqlens.tolist()), key=lambda place: place[0] == place[1])", ZERO, EMPTY),
    Mutant("packed-member-without-keys-is-nan", TILES, "total = torch.where(empty, 1.0, total)", "total = total * 1.0",
           ZERO, EMPTY),
    Mutant("packed-member-without-keys-has-lse-0", LOOP, LSE, LSE.replace("-torch.inf", "0.0"), ZERO, EMPTY),
    Mutant("packed-member-without-keys-sees-the-pack", LOOP, OUTPUT,
           f"{OUTPUT[:-1]} if length else value.mean(0).to(wide).repeat_interleave(group, 0).expand(q.shape[1], -1, -1)"
           ")",
           ZERO, EMPTY),
    Mutant("packed-stops-at-an-empty-member", LOOP, "enumerate(lengths):",
           "enumerate(lengths):\n        length = length if all(lengths[:b]) else 0", ZERO, EMPTY),
    Mutant("packed-key-lengths-ignored", LOOP, LENGTHS_LINE, "lengths = stored",
           "mask-broadcast-or-dtype/silently-ignored-argument", LENGTHS),
    Mutant("packed-key-lengths-of-the-first-member", LOOP, LENGTHS_LINE,
           f"{LENGTHS_LINE}\n    if key_lengths is not None:\n"
           "        lengths = [min(lengths[0], most) for most in stored]", NONE, LENGTHS),
    Mutant("packed-key-lengths-from-the-end", LOOP, FIRST, f"{FIRST} + stored[b] - length", NONE, LENGTHS),
    Mutant("packed-corner-of-absent-keys", LOOP, DIAGONAL, DIAGONAL.replace("length -", "stored[b] -"), CORNER,
           LENGTHS),
    Mutant("packed-absent-values-times-0", LOOP, OUTPUT,
           f"{OUTPUT[:-1]} + 0 * value[first + length : starts_k[b + 1]].sum())",
           "masked-value-leak/nan-in-masked-value", LENGTHS),
    Mutant("packed-tail-belongs-to-the-last-member", LOOP, "checked(cu_seqlens_k, len(key))",
           "[*checked(cu_seqlens_k, len(key))[:-1], len(key)]", LEAK, TAIL),
    Mutant("packed-tail-times-0", LOOP, OUTPUT, f"{OUTPUT[:-1]} + 0 * value[starts_k[-1] :].sum())",
           "masked-value-leak/nan-in-masked-value", TAIL),
    Mutant("packed-grad-of-values-one-token-off", LOOP, VALUE,
           f"v = {VALUE[4:-1]}.detach()\n        shifted = {SHIFTED}\n        v = v + (shifted - shifted.detach())\n",
           LEAK, BACK),
    Mutant("packed-grad-of-keys-by-the-last-head", LOOP, KEY,
           KEY.replace("\n", "\n        k = torch.cat([x if h % group == group - 1 else x.detach() for h, x in "
                       "enumerate(k.split(1))])\n"), "gqa-heads/gqa-grad-not-summed", BACK),
    Mutant("packed-grad-of-the-first-member-alone", LOOP, OUTPUT, f"{OUTPUT[:-1]} if b == 0 else (weights @ v)"
           ".transpose(0, 1).detach())", LEAK, BACK),
    Mutant("packed-grad-of-keys-of-the-last-member", LOOP, KEY,
           KEY.replace("\n", "\n        k = k if b == len(lengths) - 1 else k.detach()\n"), LEAK, BACK),
    Mutant("packed-grad-without-the-triangle", LOOP, HIDE, f"raw, {HIDE.replace('= ', '= scores, ', 1)}",
           "backward/backward-ignores-causal", BACK,
           also=((OUTPUT, "loose = torch.softmax(raw, -1).double() @ v.double()\n"
                  "        outputs.append((loose + (weights @ v - loose).detach()).transpose(0, 1))"),)),
    Mutant("packed-grad-of-the-lse-dropped", LOOP, LSE,
           "lses.append((torch.logsumexp(scores.masked_fill(empty[:, None], 0.0), -1).detach() + 0 * q.sum())"
           ".masked_fill(empty, -torch.inf))", "none public: few kernels give the lse a gradient", BACK),
    Mutant("packed-grad-of-empty-rows-is-nan", TILES, "total = torch.where(empty, 1.0, total)",
           "raw, total = total, torch.where(empty, 1.0, total)", "tail-tile-or-block-multiple/backward-nan", BACK,
           also=(("(mixed / total[..., None])", "torch.where(empty[..., None], 0.0, mixed / raw[..., None])"),)),
    Mutant("packed-takes-any-first-boundary", LOOP, "ends[0] != 0 or ", "", ACCEPTED,
           BOUNDARIES),
    Mutant("packed-takes-falling-queries", LOOP, "ends != sorted(ends) or ", "",
           ACCEPTED, BOUNDARIES),
    Mutant("packed-window-lost-beside-lengths-and-triangle", LOOP, LEFT,
           f"{LEFT[:-1]} and not (is_causal and key_lengths is not None):", NONE, WINDOW),
    Mutant("packed-gradient-halved-beside-a-window", LOOP, OUTPUT,
           "part = (weights @ v).transpose(0, 1)\n        outputs.append(part if window_size is None else (part + "
           "part.detach()) / 2)", NONE, BACK),
    Mutant("packed-takes-falling-keys", TILES, " or (cu_seqlens.diff() < 0).any()", "",
           ACCEPTED, BOUNDARIES),
    Mutant("packed-cuts-boundaries-to-the-pack", LOOP, ENDS, "ends = cu_seqlens.clamp(max=total).tolist()",
           ACCEPTED, BOUNDARIES),
    Mutant("packed-takes-any-tensor-of-boundaries", LOOP, CHECKED, "if False:",
           ACCEPTED, BOUNDARIES,
           also=((ENDS, "ends = cu_seqlens.flatten().int().tolist()"),)),
    Mutant("packed-takes-another-number-of-members", LOOP, "if len(starts_q) != len(starts_k):", "if False:",
           "validation-or-degenerate/len-k-ne-len-v", BOUNDARIES),
    Mutant("packed-takes-any-key-length", TILES, "if (key_lengths < 0).any() or (key_lengths > stored).any():",
           "if False:", ACCEPTED, LENGTHS),
)  # fmt: skip
