"""Faults of the masks of prefixes."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

PREFIX = "prefix-lm.visible"
LEAK = "varlen-or-paged/varlen-boundary-leak"
UP_TO = "torch.arange(k_len) < prefix_lengths[:, None, None, None]"
DIAGONAL = 'k_len - q_len if causal_alignment == "lower_right" else 0'

MUTANTS = (
    Mutant("prefix-one-more", "forms/prefix_lm", UP_TO, UP_TO.replace("<", "<="), KIND, PREFIX),
    Mutant("prefix-one-less", "forms/prefix_lm", UP_TO, UP_TO.replace("arange(k_len)", "arange(1, k_len + 1)"), KIND,
           PREFIX),
    Mutant("prefix-of-batch-0", "forms/prefix_lm", UP_TO,
           UP_TO.replace("prefix_lengths[", "prefix_lengths[:1].expand_as(prefix_lengths)["), LEAK, PREFIX),
    Mutant("prefix-ignored", "forms/prefix_lm", "return prefix | triangle",
           "return triangle.expand(len(prefix), 1, -1, -1)",
           "mask-broadcast-or-dtype/silently-ignored-argument", PREFIX),
    Mutant("prefix-without-the-triangle", "forms/prefix_lm", "return prefix | triangle",
           "return prefix.expand(-1, -1, q_len, -1)", "mask-broadcast-or-dtype/silently-ignored-argument", PREFIX),
    Mutant("prefix-and-triangle", "forms/prefix_lm", "prefix | triangle", "prefix & triangle", KIND, PREFIX),
    Mutant("prefix-rows-alone-see-it", "forms/prefix_lm", "return prefix | triangle",
           "return (prefix & (torch.arange(q_len)[:, None] < prefix_lengths[:, None, None, None])) | triangle", KIND,
           PREFIX),
    Mutant("prefix-sees-what-follows", "forms/prefix_lm", "return prefix | triangle",
           "return prefix | triangle | (torch.arange(q_len)[:, None] < prefix_lengths[:, None, None, None])", KIND,
           PREFIX),
    Mutant("prefix-at-the-end", "forms/prefix_lm", UP_TO, f"({UP_TO}).flip(-1)", KIND, PREFIX),
    Mutant("prefix-moves-the-triangle", "forms/prefix_lm_by_row", "max(length, place + 1, 0)", "max(length + place, 0)",
           KIND, PREFIX),
    Mutant("prefix-triangle-sees-the-next", "forms/prefix_lm", ".tril(diagonal)", ".tril(diagonal + 1)", KIND, PREFIX),
    Mutant("prefix-triangle-without-the-own-key", "forms/prefix_lm_by_row", "place + 1, 0)", "place, 0)", KIND, PREFIX),
    Mutant("prefix-from-the-upper-left", "forms/prefix_lm", DIAGONAL, "0",
           "causal-geometry/causal-top-left-vs-bottom-right", PREFIX),
    Mutant("prefix-from-the-lower-right", "forms/prefix_lm", DIAGONAL, "k_len - q_len",
           "causal-geometry/causal-top-left-vs-bottom-right", PREFIX),
    Mutant("prefix-of-0-is-none", "forms/prefix_lm", UP_TO,
           f"({UP_TO}) | (prefix_lengths == 0)[:, None, None, None]", "varlen-or-paged/zero-length-kv", PREFIX),
    Mutant("prefix-of-all-is-cut", "forms/prefix_lm_by_row", "max(length, place + 1, 0)",
           "max(min(length, k_len - 1), place + 1, 0)", KIND, PREFIX),
    Mutant("prefix-beyond-the-keys-taken", "forms/prefix_lm", " or int(prefix_lengths.max()) > k_len", "",
           "validation-or-degenerate/reference-wrong", PREFIX),
    Mutant("prefix-below-0-taken", "forms/prefix_lm", "int(prefix_lengths.min()) < 0 or ", "",
           "validation-or-degenerate/reference-wrong", PREFIX),
)  # fmt: skip
