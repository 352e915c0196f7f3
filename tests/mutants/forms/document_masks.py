"""Faults of the masks of documents and prefixes."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

SAME, CAUSAL, PADDING, PREFIX = (
    "document-mask.same-document", "document-mask.causal", "document-mask.padding", "prefix-lm.visible",
)  # fmt: skip
EQUAL = "same = query_documents[:, None, :, None] == key_documents[:, None, None, :]"
REAL = "mask = same & (query_documents >= 0)[:, None, :, None]"
LEAK = "varlen-or-paged/varlen-boundary-leak"
TRIANGLE = "torch.ones(mask.shape[-2:], dtype=torch.bool).tril()"

DOCUMENT_MASK = (
    Mutant("documents-leak-at-the-boundary", "forms/document_mask", REAL,
           f"{REAL}\n    mask[..., 1:] |= mask[..., :-1] & (key_documents >= 0)[:, None, None, 1:]", LEAK, SAME),
    Mutant("documents-see-earlier-ones", "forms/document_mask", EQUAL, EQUAL.replace("==", ">="), LEAK, SAME,
           also=((REAL, f"{REAL} & (key_documents >= 0)[:, None, None]"),)),
    Mutant("documents-as-one", "forms/document_mask", EQUAL, "same = (query_documents >= 0)[:, None, :, None] & "
           "(key_documents >= 0)[:, None, None, :]", LEAK, SAME),
    Mutant("documents-by-their-first-and-last-token", "forms/document_mask_by_document",
           "keys = (key_documents[b] == document).nonzero()[:, 0]",
           "keys = (key_documents[b] == document).nonzero()[:, 0]\n"
           "            keys = torch.arange(keys.min(), keys.max() + 1) if len(keys) else keys", LEAK, SAME),
    Mutant("documents-of-batch-0", "forms/document_mask", EQUAL,
           EQUAL.replace("key_documents[", "key_documents[:1].expand_as(key_documents)["), LEAK, SAME),
    Mutant("documents-of-the-keys-for-queries", "forms/document_mask_by_document",
           "rows = (query_documents[b] == document)", "rows = (key_documents[b] == document)[:q_len]", KIND, SAME),
    Mutant("documents-that-rise-only", "forms/document_mask", EQUAL,
           EQUAL.replace("same = query_documents", "same = query_documents.cummax(1).values"), KIND, SAME),
    Mutant("documents-inverted", "forms/document_mask", EQUAL, EQUAL.replace("==", "!="), KIND, SAME),
    Mutant("documents-by-parity", "forms/document_mask", EQUAL,
           EQUAL.replace("query_documents[", "query_documents.remainder(2)[").replace(
               "key_documents[", "key_documents.remainder(2)["), KIND, SAME),
    Mutant("documents-of-number-0-are-padding", "forms/document_mask", "query_documents >= 0", "query_documents > 0",
           KIND, SAME),
    Mutant("documents-transposed", "forms/document_mask", "    return mask\n",
           "    return mask.mT if mask.shape[2] == mask.shape[3] else mask\n", "strides-or-layout/mask-transposed",
           CAUSAL),
    Mutant("documents-without-the-triangle", "forms/document_mask", "if is_causal:", "if False:",
           "mask-broadcast-or-dtype/silently-ignored-argument", CAUSAL),
    Mutant("documents-causal-or-same", "forms/document_mask", f"mask & {TRIANGLE}", f"mask | {TRIANGLE}", LEAK, CAUSAL),
    Mutant("documents-triangle-alone", "forms/document_mask", f"mask & {TRIANGLE}", f"{TRIANGLE}.expand_as(mask)", LEAK,
           CAUSAL),
    Mutant("documents-see-the-next-token", "forms/document_mask", ".tril()", ".tril(1)", KIND, CAUSAL),
    Mutant("documents-see-no-own-token", "forms/document_mask_by_document", "keys <= row", "keys < row", KIND, CAUSAL),
    Mutant("documents-padding-sees-padding", "forms/document_mask", REAL, "mask = same", LEAK, PADDING),
    Mutant("documents-padding-of-minus-1-alone", "forms/document_mask", "query_documents >= 0", "query_documents != -1",
           KIND, PADDING),
    Mutant("documents-padding-is-seen", "forms/document_mask", REAL,
           f"{REAL} | (key_documents < 0)[:, None, None, :]", LEAK, PADDING),
    Mutant("documents-padding-sees-everything", "forms/document_mask", REAL,
           f"{REAL} | (query_documents < 0)[:, None, :, None]", "fully-masked-row/fully-masked-row-garbage", PADDING),
    Mutant("documents-padding-sees-itself", "forms/document_mask", REAL,
           f"{REAL}\n    mask = mask | (torch.eye(*mask.shape[2:], dtype=torch.bool) & same)",
           "fully-masked-row/fully-masked-row-garbage", PADDING),
    Mutant("documents-as-floats", "forms/document_mask", "    return mask\n",
           "    return torch.where(mask, 0.0, -torch.inf)\n", KIND, SAME),
)  # fmt: skip

UP_TO = "torch.arange(k_len) < prefix_lengths[:, None, None, None]"
DIAGONAL = 'k_len - q_len if causal_alignment == "lower_right" else 0'

PREFIX_LM = (
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
