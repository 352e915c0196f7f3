"""Faults of merging."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

ASSOCIATIVE, PARTS, GAP, MERGED = (
    "flash.merge-associative", "flash.merge-empty", "flash.merge-gap", "accuracy.merge-within-budget",
)  # fmt: skip
FINITE = "    top = torch.where(top == -torch.inf, 0.0, top)\n"
SHARES = "shares = torch.exp(lses - top)"

MUTANTS = (
    Mutant("naive-merge-without-a-maximum", "forms/merge_at_once", "lses.amax(0)", "torch.zeros_like(lses[0])",
           KIND, GAP),
    Mutant("naive-merge-against-the-first-part", "forms/merge_at_once", "lses.amax(0)", "lses[0]", KIND, GAP),
    Mutant("merge-by-exp-of-the-lse", "forms/merge_pairwise", "torch.exp(lse - reach)",
           "(torch.exp(lse) / torch.exp(reach))", KIND, GAP),
    Mutant("merge-lse-by-log-of-exp", "forms/merge_pairwise", "torch.logaddexp(lse, part_lse)",
           "torch.log(torch.exp(lse) + torch.exp(part_lse))", KIND, GAP),
    Mutant("merge-clamps-distances", "forms/merge_at_once", SHARES, "shares = torch.exp((lses - top).clamp(min=-10))",
           KIND, GAP),
    Mutant("merge-forgets-the-lse", "forms/merge_at_once", SHARES,
           "shares = (lses > -torch.inf).to(lses.dtype) + 0 * top", KIND, ASSOCIATIVE),
    Mutant("merge-shares-swapped", "forms/merge_pairwise", "torch.exp(part_lse - reach)[..., None] * part",
           "torch.exp(lse - reach)[..., None] * part", KIND, ASSOCIATIVE,
           also=(("torch.exp(lse - reach)[..., None] * output", "torch.exp(part_lse - reach)[..., None] * output"),)),
    Mutant("merge-drops-the-last-part", "forms/merge_at_once", "(shares[..., None] * seen).sum(0)",
           "(shares[..., None] * seen)[: max(len(seen) - 1, 1)].sum(0)", KIND, ASSOCIATIVE),
    Mutant("merge-not-divided", "forms/merge_at_once", "mixed / torch.where(total == 0, 1.0, total)[..., None]",
           "mixed", KIND, ASSOCIATIVE),
    Mutant("merged-lse-is-the-maximum", "forms/merge_at_once", "lse = top + torch.log(total)",
           "lse = torch.where(total == 0, -torch.inf, top)", KIND, ASSOCIATIVE),
    Mutant("merged-lse-in-base-2", "forms/merge_at_once", "torch.log(total)", "torch.log2(total)", KIND, ASSOCIATIVE),
    Mutant("merged-lse-adds-the-count", "forms/merge_at_once", "torch.log(total)",
           "torch.log(total + len(lses) * (total > 0))", KIND, ASSOCIATIVE),
    Mutant("merge-nan-at-two-minus-inf", "forms/merge_at_once", FINITE, "", KIND, PARTS),
    Mutant("merge-nan-at-two-minus-inf-in-a-chain", "forms/merge_pairwise",
           "torch.where(both == -torch.inf, 0.0, both)", "both", KIND, PARTS),
    Mutant("merge-of-nothing-divides-by-0", "forms/merge_at_once", "torch.where(total == 0, 1.0, total)", "total",
           KIND, PARTS),
    Mutant("merge-of-nothing-has-lse-0", "forms/merge_at_once", "torch.log(total)",
           "torch.log(torch.where(total == 0, 1.0, total))", KIND, PARTS),
    Mutant("merge-counts-empty-parts-as-0", "forms/merge_at_once", "lses - top",
           "lses.nan_to_num(neginf=0.0) - top", KIND, PARTS),
    Mutant("merge-of-nothing-gives-what-lies-there", "forms/merge_at_once",
           ".masked_fill((lses == -torch.inf)[..., None], 0.0)", "", KIND, PARTS,
           also=(("    output = mixed / torch.where(total == 0, 1.0, total)[..., None]",
                  "    output = torch.where((total == 0)[..., None], seen[0], mixed / total[..., None])"),)),
    Mutant("merge-shares-in-bfloat16", "forms/merge_at_once", SHARES, f"{SHARES}.bfloat16().to(lses.dtype)", KIND,
           MERGED),
    Mutant("merge-in-the-storage-dtype", "forms/merge_pairwise", "zip(outputs.to(lses.dtype), lses",
           "zip(outputs, lses", KIND, MERGED,
           also=(("[..., None] * part\n", "[..., None] * part\n        output = output.to(part.dtype)\n"),
                 ("dtype=lses.dtype), torch", "dtype=outputs.dtype), torch"))),
    Mutant("merged-lse-in-the-storage-dtype", "forms/merge_at_once", ", lse\n",
           ", lse.to(outputs.dtype).to(lses.dtype)\n", KIND, MERGED),
)  # fmt: skip
