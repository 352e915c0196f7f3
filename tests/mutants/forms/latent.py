"""Faults of latent attention, in its expanded and its absorbed form."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

EXPANDED, ABSORBED, SCALE, ROPE = "latent.expanded", "latent.absorbed", "latent.scale", "latent.shared-rope"
SHAPE, RANGE, VISIBLE, ABSENT = "latent.shape", "key-lengths.range", "key-lengths.visible", "key-lengths.absent"
BUDGET, CORNER = "accuracy.latent-within-budget", "key-lengths.causal"
KEYS = 'torch.einsum("bkr,hnr->bhkn", latent.to(wide), w_uk.to(wide))'
VALUES = 'torch.einsum("bkr,hvr->bhkv", latent.to(wide), w_uv.to(wide))'
ROPE_KEY = "rope_key = key_rope[:, None].expand(-1, heads, -1, -1)"
DEFAULT = "head_dim**-0.5 if scale is None"
TAKEN = 'torch.einsum("bhqn,hnr->bhqr", nope, w_uk.to(wide))'
OUTWARD = 'torch.einsum("bhqr,hvr->bhqv", attended.to(wide), w_uv.to(wide))'
ROPE_SCORES = "        scores = scores + rope @ key_rope[:, None, place].to(wide).transpose(-1, -2)\n"
FITS = "(len(w_uk), len(w_uv), rank, nope_dim) != (heads, heads, latent.shape[2], head_dim - key_rope.shape[2])"

MUTANTS = (
    Mutant("latent-rope-missing-from-the-scores", "forms/latent_absorbed", ROPE_SCORES, "", KIND, EXPANDED),
    Mutant("latent-rope-added-after-the-scale", "forms/latent_absorbed", ROPE_SCORES, "", KIND, EXPANDED,
           also=(("(scores * scale).masked_fill",
                  "(scores * scale + rope @ key_rope[:, None, place].to(wide).transpose(-1, -2)).masked_fill"),)),
    Mutant("latent-rope-first-in-the-key", "forms/latent_expanded", "torch.cat([nope_key, rope_key], -1)",
           "torch.cat([rope_key, nope_key], -1)", KIND, EXPANDED),
    Mutant("latent-key-and-value-matrices-swapped", "forms/latent_expanded", KEYS,
           KEYS.replace("w_uk.", "(w_uv if w_uv.shape == w_uk.shape else w_uk)."), KIND, EXPANDED,
           also=((VALUES, VALUES.replace("w_uv.", "(w_uk if w_uv.shape == w_uk.shape else w_uv).")),)),
    Mutant("latent-values-of-head-0", "forms/latent_expanded", VALUES,
           VALUES.replace("w_uv.", "w_uv[:1].expand_as(w_uv)."), KIND, EXPANDED),
    Mutant("latent-heads-in-reverse", "forms/latent_expanded", VALUES, VALUES.replace("w_uv.", "w_uv.flip(0)."),
           KIND, EXPANDED),
    Mutant("latent-cache-of-batch-0", "forms/latent_expanded", KEYS,
           KEYS.replace("latent.", "latent[:1].expand_as(latent)."), KIND, EXPANDED),
    Mutant("latent-absorbed-with-the-wrong-transpose", "forms/latent_absorbed", TAKEN,
           TAKEN.replace("w_uk.", "(w_uk.mT if nope_dim == rank else w_uk)."), KIND, ABSORBED),
    Mutant("latent-absorbed-values-with-the-wrong-transpose", "forms/latent_absorbed", OUTWARD,
           OUTWARD.replace("w_uv.", "(w_uv.mT if w_uv.shape[1] == rank else w_uv)."), KIND, ABSORBED),
    Mutant("latent-absorbed-by-head-0", "forms/latent_absorbed", TAKEN,
           TAKEN.replace("w_uk.", "w_uk[:1].expand_as(w_uk)."), KIND, ABSORBED),
    Mutant("latent-absorbed-and-not-taken-out", "forms/latent_absorbed", OUTWARD,
           OUTWARD.replace("w_uv.", "torch.ones_like(w_uv)."), KIND, ABSORBED),
    Mutant("latent-absorbed-rope-in-the-values", "forms/latent_absorbed", "parts @ shared\n",
           "parts @ torch.nn.functional.pad(key_rope[:, None, place].to(wide), (0, rank))[..., :rank]"
           " + parts @ shared\n", KIND, ABSORBED),
    Mutant("latent-scale-of-the-nope-part", "forms/latent_expanded", DEFAULT, "w_uk.shape[1]**-0.5 if scale is None",
           KIND, SCALE),
    Mutant("latent-scale-of-the-absorbed-dim", "forms/latent_absorbed", DEFAULT,
           "(rank + key_rope.shape[2])**-0.5 if scale is None", KIND, SCALE),
    Mutant("latent-scale-inverted", "forms/latent_absorbed", "(scores * scale)", "(scores / scale)",
           "scale-softcap-bias/scale-inverted", SCALE),
    Mutant("latent-scale-not-on-rope", "forms/latent_expanded",
           "scores = query.to(wide) @ key.transpose(-1, -2) * scale",
           "scores = query.to(wide)[..., :w_uk.shape[1]] @ key[..., :w_uk.shape[1]].mT * scale"
           " + query.to(wide)[..., w_uk.shape[1]:] @ key[..., w_uk.shape[1]:].mT", KIND, SCALE),
    Mutant("latent-scale-ignored", "forms/latent_expanded", f"{DEFAULT} else scale", "head_dim**-0.5",
           "scale-softcap-bias/silently-ignored-argument", "attention.scale-explicit"),
    Mutant("latent-rope-key-of-head-0-alone", "forms/latent_expanded", ROPE_KEY,
           f"{ROPE_KEY} * (torch.arange(heads) == 0)[:, None, None]", KIND, ROPE),
    Mutant("latent-rope-key-split-among-heads", "forms/latent_expanded", ROPE_KEY, f"{ROPE_KEY} / heads", KIND, ROPE),
    Mutant("latent-rope-query-of-head-0", "forms/latent_absorbed", "query[..., nope_dim:].to(wide)",
           "query[:, :1, :, nope_dim:].to(wide)", KIND, ROPE),
    Mutant("latent-sees-the-next-key", "forms/latent_absorbed", "place <= diagonal", "place <= diagonal + 1",
           "causal-geometry/causal-top-left-vs-bottom-right", "mask.causal-upper-left"),
    Mutant("latent-lengths-of-batch-0", "forms/latent_expanded", "lengths[:, None, None, None]  #",
           "lengths[:1, None, None, None]  #", "varlen-or-paged/varlen-boundary-leak", VISIBLE),
    Mutant("latent-lengths-one-too-long", "forms/latent_absorbed", "place < lengths", "place <= lengths",
           "varlen-or-paged/varlen-boundary-leak", ABSENT),
    Mutant("latent-lengths-ignored", "forms/latent_absorbed", "visible = place < lengths[:, None, None, None]",
           "visible = place < k_len", "varlen-or-paged/varlen-boundary-leak", ABSENT),
    Mutant("latent-triangle-from-the-end-of-the-cache", "forms/latent_expanded",
           "(lengths - q_len)[:, None, None, None]", "(k_len - q_len)",
           "varlen-or-paged/chunked-prefill-offset", CORNER),
    Mutant("latent-empty-cache-is-nan", "forms/latent_expanded", ".masked_fill(empty, 0.0)", "",
           "varlen-or-paged/zero-length-kv", "key-lengths.zero"),
    Mutant("latent-empty-cache-has-lse-0", "forms/latent_absorbed", "top + torch.log(total)",
           "top.nan_to_num(neginf=0.0) + torch.log(total.masked_fill(total == 0, 1.0))",
           "varlen-or-paged/zero-length-kv", "key-lengths.zero"),
    Mutant("latent-empty-row-divides-by-0", "forms/latent_absorbed", "total.masked_fill(total == 0, 1.0)", "total",
           "fully-masked-row/fully-masked-row-nan", "mask.fully-masked-row"),
    Mutant("latent-lse-in-base-2", "forms/latent_absorbed", "torch.log(total)", "torch.log2(total)",
           "lse-or-split-merge/lse-wrong-base", "softmax.lse"),
    Mutant("latent-absorbed-query-in-bfloat16", "forms/latent_absorbed", f"{TAKEN}.to(dtype)", f"{TAKEN}.bfloat16()",
           KIND, BUDGET),
    Mutant("latent-values-in-bfloat16", "forms/latent_expanded", f"{VALUES}.to(dtype)", f"{VALUES}.bfloat16()", KIND,
           BUDGET),
    Mutant("latent-block-not-rescaled", "forms/latent_absorbed", "mixed * kept", "mixed",
           "softmax-max-or-sentinel/online-softmax-init", EXPANDED),
    Mutant("latent-heads-broadcast", "forms/latent_expanded", "w_uk.shape[0] != heads or w_uv.shape[0] != heads",
           "w_uk.shape[0] not in (1, heads) or w_uv.shape[0] not in (1, heads)",
           "validation-or-degenerate/reference-wrong", SHAPE,
           also=((KEYS, KEYS.replace("w_uk.", "w_uk.expand(heads, -1, -1).")),
                 (VALUES, VALUES.replace("w_uv.", "w_uv.expand(heads, -1, -1).")))),
    Mutant("latent-rank-broadcast", "forms/latent_expanded", "w_uk.shape[2] != latent.shape[2] or ", "",
           "validation-or-degenerate/reference-wrong", SHAPE),
    Mutant("latent-head-dim-cut", "forms/latent_absorbed", FITS,
           FITS.replace("head_dim - key_rope.shape[2])", "nope_dim)"),
           "validation-or-degenerate/reference-wrong", SHAPE,
           also=(("key_rope[:, None, place].to(wide)", "key_rope[:, None, place, : head_dim - nope_dim].to(wide)"),)),
    Mutant("latent-length-beyond-the-cache-taken", "forms/latent_absorbed",
           "int(lengths.max()) > k_len or int(lengths.min()) < 0", "False",
           "varlen-or-paged/varlen-boundary-leak", RANGE),
)  # fmt: skip
