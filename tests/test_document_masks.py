"""Masks of documents and prefixes: by hand, equal to packed calls, and the faults that each law finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import law_tests

from attnspec.reference import masks
from attnspec.reference.attention import attention
from attnspec.reference.document_masks import causal_document, documents_of, prefix_lm, same_document
from attnspec.reference.packed import packed_attention
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
Mask = Callable[..., torch.Tensor]
T = torch.Tensor


def rows(mask: T) -> list[str]:
    """Return a mask (length, length) as strings of 0 and 1."""
    return ["".join(str(int(x)) for x in row) for row in mask]


# ---------------------------------------------------------------- laws


def documents_by_hand(mask: Mask) -> None:
    documents = torch.tensor([[0, 0, 1, -1], [7, 3, 7, 3], [2, 1, 0, 0]])
    assert rows(mask(documents)[0, 0]) == ["1000", "1100", "0010", "0000"]
    assert rows(mask(documents)[1, 0]) == ["1000", "0100", "1010", "0101"]
    assert rows(mask(documents)[2, 0]) == ["1000", "0100", "0010", "0011"]


def is_the_packed_call(mask: Mask) -> None:
    generator = torch.Generator().manual_seed(2)
    for lengths in ([3, 4], [1, 0, 5, 1], [7], [2, 5]):
        tail = 1
        total = sum(lengths) + tail
        query, key, value = (torch.randn(total, 2, d, generator=generator, dtype=torch.float64) for d in (5, 5, 3))
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
        want = packed_attention(query, key, value, cu_seqlens, cu_seqlens, is_causal=True)
        whole = [x.transpose(0, 1)[None] for x in (query, key, value)]
        got = attention(*whole, attn_mask=mask(documents_of(cu_seqlens, total)))
        torch.testing.assert_close(got.output[0].transpose(0, 1), want.output, rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(got.lse[0], want.lse, rtol=TOLERANCE, atol=TOLERANCE)


def prefixes_by_hand(mask: Mask) -> None:
    got = mask(4, 4, torch.tensor([0, 2, 4]))
    assert rows(got[0, 0]) == ["1000", "1100", "1110", "1111"]
    assert rows(got[1, 0]) == ["1100", "1100", "1110", "1111"]
    assert rows(got[2, 0]) == ["1111"] * 4
    assert rows(mask(2, 4, torch.tensor([1]))[0, 0]) == ["1000", "1100"]
    assert rows(mask(2, 4, torch.tensor([1]), "lower_right")[0, 0]) == ["1110", "1111"]
    assert rows(mask(4, 2, torch.tensor([1]), "lower_right")[0, 0]) == ["10", "10", "10", "11"]


def one_token_of_the_next(documents: T) -> T:
    """The first token of a document sees the last one of the document before."""
    before = same_document(documents, documents.roll(-1, dims=1)) | same_document(documents, documents)
    return before & masks.causal(documents.shape[1], documents.shape[1])


def documents_up_to_here(documents: T) -> T:
    """Numbers are compared by order."""
    earlier = documents[:, None, :, None] >= documents[:, None, None, :]
    return earlier & masks.causal(documents.shape[1], documents.shape[1]) & (documents >= 0)[:, None, :, None]


def not_causal(documents: T) -> T:
    return same_document(documents, documents)


def padding_is_a_document(documents: T) -> T:
    return causal_document(documents + 1)


def documents_of_batch_0(documents: T) -> T:
    return causal_document(documents[:1].expand_as(documents))


def prefix_one_longer(q_len: int, k_len: int, lengths: T, *rest: Any) -> T:
    return prefix_lm(q_len, k_len, (lengths + 1).clamp(max=k_len), *rest)


def prefix_and_causal(q_len: int, k_len: int, lengths: T, *rest: Any) -> T:
    return prefix_lm(q_len, k_len, lengths, *rest) & masks.causal(q_len, k_len, *rest)


def prefix_of_batch_0(q_len: int, k_len: int, lengths: T, *rest: Any) -> T:
    return prefix_lm(q_len, k_len, lengths[:1].expand_as(lengths), *rest)


def prefix_rows_alone(q_len: int, k_len: int, lengths: T, *rest: Any) -> T:
    """Only the rows of the prefix see it whole."""
    in_prefix = torch.arange(q_len)[:, None] < lengths[:, None, None, None]
    return torch.where(in_prefix, prefix_lm(q_len, k_len, lengths, *rest), masks.causal(q_len, k_len, *rest))


DOCUMENT_LAWS = (documents_by_hand, is_the_packed_call)
DOCUMENT_FAULTS = [
    (fault, law)
    for law in DOCUMENT_LAWS
    for fault in (one_token_of_the_next, documents_up_to_here, not_causal, padding_is_a_document)
] + [(documents_of_batch_0, documents_by_hand)]
PREFIX_LAWS = (prefixes_by_hand,)
PREFIX_FAULTS = [
    (fault, prefixes_by_hand) for fault in (prefix_one_longer, prefix_and_causal, prefix_of_batch_0, prefix_rows_alone)
]

test_documents_keep_the_law, test_a_fault_of_documents_breaks_the_law, test_each_law_of_documents_finds_a_fault = (
    law_tests((causal_document,), DOCUMENT_LAWS, DOCUMENT_FAULTS)
)
test_prefixes_keep_the_law, test_a_fault_of_prefixes_breaks_the_law, test_each_law_of_prefixes_finds_a_fault = (
    law_tests((prefix_lm,), PREFIX_LAWS, PREFIX_FAULTS)
)


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=8), st.lists(st.integers(-1, 3), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_queries_and_keys_meet_in_one_document(of_queries: list[int], of_keys: list[int]) -> None:
    mask = same_document(torch.tensor([of_queries]), torch.tensor([of_keys]))
    want = ["".join(str(int(a == b >= 0)) for b in of_keys) for a in of_queries]
    assert rows(mask[0, 0]) == want


def test_padding_rows_are_empty_rows() -> None:
    documents = torch.tensor([[0, -1, 0]])
    result = attention(*(torch.ones(1, 1, 3, 2),) * 3, attn_mask=same_document(documents, documents))
    assert result.lse is not None
    assert result.output[0, 0].tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert result.lse[0, 0, 1].item() == -math.inf


def test_documents_of_boundaries() -> None:
    assert documents_of(torch.tensor([0, 2, 2, 5]), 6).tolist() == [[0, 0, 2, 2, 2, -1]]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: causal_document(torch.zeros(3).long()),
            "query_documents is torch.int64 (3,): use torch.int32 or torch.int64, (batch, length)",
        ),
        (
            lambda: causal_document(torch.zeros(1, 3)),
            "query_documents is torch.float32 (1, 3): use torch.int32 or torch.int64, (batch, length)",
        ),
        (
            lambda: same_document(torch.zeros(2, 3).long(), torch.zeros(1, 3).long()),
            "query_documents and key_documents have batch 2 and 1: use the same",
        ),
        (lambda: prefix_lm(3, 4, torch.tensor([1, 5])), "prefix_lengths has 5 for batch 1: use 0 to 4"),
        (
            lambda: prefix_lm(3, 4, torch.tensor([1.0])),
            "prefix_lengths is torch.float32: use torch.int32 or torch.int64",
        ),
        (
            lambda: prefix_lm(3, 4, torch.tensor([1]), "left"),
            "causal_alignment is 'left': use one of upper_left, lower_right",
        ),
        (
            lambda: documents_of(torch.tensor([0, 3, 2]), 6),
            "cu_seqlens falls from 3 to 2 at sequence 1: use boundaries that never fall",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        act()
    assert str(caught.value) == message
