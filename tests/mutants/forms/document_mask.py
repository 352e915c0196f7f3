"""Faults of the masks of documents."""

from mutants.forms.kind import KIND
from mutants.house import Mutant

SAME, CAUSAL, PADDING = "document-mask.same-document", "document-mask.causal", "document-mask.padding"
EQUAL = "same = query_documents[:, None, :, None] == key_documents[:, None, None, :]"
REAL = "mask = same & (query_documents >= 0)[:, None, :, None]"
LEAK = "varlen-or-paged/varlen-boundary-leak"
TRIANGLE = "torch.ones(mask.shape[-2:], dtype=torch.bool).tril()"

MUTANTS = (
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
