"""Masks of several documents in one sequence, and of a prefix that is seen whole (chapter "document-masks")."""

from __future__ import annotations

import torch

from attnspec.reference import masks
from attnspec.reference.lengths import check
from attnspec.reference.packed import spans
from attnspec.spec.errors import InputError


def same_document(query_documents: torch.Tensor, key_documents: torch.Tensor) -> torch.Tensor:
    """Return where query and key are of one document, bool (batch, 1, q_len, k_len): a bool `attn_mask`.

    query_documents: (batch, q_len); key_documents: (batch, k_len), int32 or int64: the number of each token's document,
    below 0 for padding, which sees nothing and is seen by none. Raises InputError where shapes or dtypes do not fit.
    Rules: `document-mask.same-document`, `document-mask.padding`. Source: PyTorch, FlexAttention, "document masking".
    """
    for name, documents in (("query_documents", query_documents), ("key_documents", key_documents)):
        if documents.ndim != 2 or documents.dtype not in (torch.int32, torch.int64):
            shape = tuple(documents.shape)
            raise InputError(f"{name} is {documents.dtype} {shape}: use torch.int32 or torch.int64, (batch, length)")
    if len(query_documents) != len(key_documents):
        batches = f"{len(query_documents)} and {len(key_documents)}"
        raise InputError(f"query_documents and key_documents have batch {batches}: use the same")
    of_query, of_key = query_documents[:, None, :, None], key_documents[:, None, None, :]
    return (of_query == of_key) & (of_query >= 0)


def causal_document(documents: torch.Tensor) -> torch.Tensor:
    """Return where a token sees an earlier one, or itself, of its own document, bool (batch, 1, length, length).

    documents: (batch, length), as in `same_document`. Raises InputError as it does. Rule: `document-mask.causal`.
    """
    length = documents.shape[-1]
    return same_document(documents, documents) & masks.causal(length, length)


def documents_of(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
    """Return the document of each token of a pack, int64 (1, total): member b is document b, -1 behind the last one.

    cu_seqlens: (batch + 1,), as in `attnspec.reference.packed`. Raises InputError for boundaries that do not fit. Rule:
    `document-mask.packed`.
    """
    documents = torch.full((1, total), -1)
    for b, place in enumerate(spans(cu_seqlens, total)):
        documents[0, place] = b
    return documents


def prefix_lm(
    q_len: int, k_len: int, prefix_lengths: torch.Tensor, causal_alignment: str = "upper_left"
) -> torch.Tensor:
    """Return the mask of a prefix language model, bool (batch, 1, q_len, k_len): the prefix is seen whole, what follows
    causally.

    prefix_lengths: (batch,), int32 or int64, 0 to k_len. Key j is seen where j < prefix_lengths[b] or where the causal
    diagonal lets it. Raises InputError for lengths or an alignment that do not fit. Rule: `prefix-lm.visible`. Source:
    Raffel et al. 2020, section 3.2.1; Dong et al. 2019 (UniLM), figure 1.
    """
    check(prefix_lengths, len(prefix_lengths), k_len, "prefix_lengths")
    in_prefix = torch.arange(k_len) < prefix_lengths[:, None, None, None]  # (batch, 1, 1, k_len)
    return in_prefix | masks.causal(q_len, k_len, causal_alignment)
