"""Paged keys: by hand, equal to contiguous ones under any permutation, and the faults that each law finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import law_tests

from attnspec.reference.attention import attention
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.kv_cache import KVCache
from attnspec.reference.kv_cache import attend as attend_cache
from attnspec.reference.packed import spans
from attnspec.reference.paged import contiguous, packed_paged_attention, paged_attention
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
NOWHERE = 10**9  # an entry that no sequence needs


@dataclass(frozen=True)
class Paged:
    """A paged call, and the same keys and values in order, (batch, kv_heads, longest, dim)."""

    query: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    block_table: torch.Tensor
    key_lengths: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What a kernel is given."""
        return self.query, self.key_pages, self.value_pages, self.block_table, self.key_lengths


Kernel = Callable[..., Result]


def paged(lengths: list[int], page_size: int, *, seed: int = 0, junk: float = math.nan, q_len: int = 2) -> Paged:
    """Return a call whose pages lie in a drawn order among unused ones; what is not in use holds `junk`."""
    generator = torch.Generator().manual_seed(seed)
    batch, longest = len(lengths), max(lengths)
    max_blocks = -(-longest // page_size) + 1
    query, key, value = (
        torch.randn(batch, heads, length, dim, generator=generator, dtype=torch.float64)
        for heads, length, dim in ((4, q_len, 5), (2, longest, 5), (2, longest, 3))
    )
    num_blocks = sum(-(-n // page_size) for n in lengths) + 3
    free = torch.randperm(num_blocks, generator=generator).tolist()
    table = torch.full((batch, max_blocks), NOWHERE)
    key_pages, value_pages = (torch.full((num_blocks, page_size, 2, dim), junk, dtype=torch.float64) for dim in (5, 3))
    for b, length in enumerate(lengths):
        for start in range(0, length, page_size):
            block, tokens = free.pop(), slice(start, min(start + page_size, length))
            table[b, start // page_size] = block
            for pages, source in ((key_pages, key), (value_pages, value)):
                pages[block, : tokens.stop - start] = source[b, :, tokens].transpose(0, 1)
    return Paged(query, key_pages, value_pages, table, torch.tensor(lengths), key, value)


def assert_same(got: Result, want: Result) -> None:
    __tracebackhide__ = True
    for mine, theirs in ((got.output, want.output), (got.lse, want.lse)):
        torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


# ---------------------------------------------------------------- by hand


def test_two_sequences_that_share_their_first_page() -> None:
    value_pages = torch.tensor([[7.0, math.nan], [1.0, 3.0], [math.nan, math.nan], [8.0, math.nan]])[..., None, None]
    table = torch.tensor([[1, 0], [1, 3]], dtype=torch.int32)
    result = paged_attention(
        torch.zeros(2, 1, 1, 1), torch.zeros(4, 2, 1, 1), value_pages, table, torch.tensor([3, 3], dtype=torch.int32)
    )
    assert result.lse is not None
    assert result.output.flatten().tolist() == pytest.approx([11 / 3, 4.0])
    assert result.lse.flatten().tolist() == pytest.approx([math.log(3)] * 2)


# ---------------------------------------------------------------- laws


def is_contiguous_attention(kernel: Kernel, call: Paged | None = None) -> None:
    call = paged([7, 4, 9], 4) if call is None else call
    for is_causal in (False, True):
        want = attention(
            call.query,
            call.key,
            call.value,
            is_causal=is_causal,
            causal_alignment="lower_right",
            enable_gqa=True,
            key_lengths=call.key_lengths,
        )
        assert_same(kernel(*call.tensors(), is_causal=is_causal), want)


def does_not_show_what_is_not_there(kernel: Kernel) -> None:
    clean = kernel(*paged([7, 4, 9], 4, junk=0.0).tensors())
    for junk in (math.nan, math.inf, 1e9):
        assert torch.equal(kernel(*paged([7, 4, 9], 4, junk=junk).tensors()).output, clean.output)


def looks_at_no_entry_behind_the_last(kernel: Kernel) -> None:
    call = paged([7, 4, 9], 4, junk=0.5)
    for entry in (call.block_table[2, 0], NOWHERE, -1):
        stale = torch.where(call.block_table == NOWHERE, entry, call.block_table)
        is_contiguous_attention(kernel, replace(call, block_table=stale))


def takes_every_page_size(kernel: Kernel) -> None:
    for page_size in (1, 2, 3, 5, 8, 16):
        is_contiguous_attention(kernel, paged([7, 8, 1], page_size))


def takes_sequences_without_keys(kernel: Kernel) -> None:
    call = paged([0, 3], 2)
    result = kernel(*call.tensors())
    assert result.lse is not None
    assert (result.output[0] == 0).all()
    assert (result.lse[0] == -torch.inf).all()
    is_contiguous_attention(kernel, call)


LAWS = (
    is_contiguous_attention,
    does_not_show_what_is_not_there,
    looks_at_no_entry_behind_the_last,
    takes_every_page_size,
    takes_sequences_without_keys,
)


def read(pages: torch.Tensor, block: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """Return keys (batch, kv_heads, k_len, dim) of entries (batch, k_len), out of range cut to the pool."""
    return pages[block.clamp(0, len(pages) - 1), slot % pages.shape[1]].transpose(1, 2)


def places(call: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entry (batch, k_len) and the slot (k_len,) of each key, of all slots of the table."""
    page_size, max_blocks = call[1].shape[1], call[3].shape[1]
    j = torch.arange(max_blocks * page_size)
    return call[3][:, j // page_size], j % page_size


def attend(
    call: tuple[torch.Tensor, ...], block: torch.Tensor, slot: torch.Tensor, lengths: torch.Tensor, is_causal: bool
) -> Result:
    """Attention over keys read so."""
    key, value = read(call[1], block, slot), read(call[2], block, slot)
    return attention(
        call[0], key, value, is_causal=is_causal, causal_alignment="lower_right", enable_gqa=True, key_lengths=lengths
    )


def slot_one_off(*call: torch.Tensor, is_causal: bool = False) -> Result:
    block, slot = places(call)
    return attend(call, block, slot + 1, call[4], is_causal)


def pages_in_the_order_of_the_pool(*call: torch.Tensor, is_causal: bool = False) -> Result:
    return attend(
        (*call[:3], call[3].sort(dim=1).values, call[4]),
        *places((*call[:3], call[3].sort(dim=1).values)),
        call[4],
        is_causal,
    )


def table_of_batch_0(*call: torch.Tensor, is_causal: bool = False) -> Result:
    block, slot = places(call)
    return attend(call, block[:1].expand_as(block), slot, call[4], is_causal)


def lengths_of_batch_0(*call: torch.Tensor, is_causal: bool = False) -> Result:
    return attend(call, *places(call), call[4][:1].expand_as(call[4]), is_causal)


def whole_pages(*call: torch.Tensor, is_causal: bool = False) -> Result:
    """The last page is read to its end."""
    page_size = call[1].shape[1]
    return attend(call, *places(call), (call[4] + page_size - 1) // page_size * page_size, is_causal)


def whole_row_of_the_table(*call: torch.Tensor, is_causal: bool = False) -> Result:
    block, slot = places(call)
    return attend(call, block, slot, torch.full_like(call[4], block.shape[1]), is_causal)


def absent_values_times_0(*call: torch.Tensor, is_causal: bool = False) -> Result:
    """Masked by a weight of 0, which lets NaN through."""
    value = read(call[2], *places(call))
    result = paged_attention(*call, is_causal=is_causal)
    return Result(result.output + 0 * value.sum((1, 2, 3))[:, None, None, None], result.lse)


def page_size_a_power_of_two(*call: torch.Tensor, is_causal: bool = False) -> Result:
    """Entry and slot by shift and mask."""
    bits = (call[1].shape[1] - 1).bit_length()
    j = torch.arange(call[3].shape[1] * call[1].shape[1])
    block = call[3][:, (j >> bits).clamp(max=call[3].shape[1] - 1)]
    return attend(call, block, j & (2**bits - 1), call[4], is_causal)


def no_keys_give_one(*call: torch.Tensor, is_causal: bool = False) -> Result:
    return attend(call, *places(call), call[4].clamp(min=1), is_causal)


FAULTS = [
    (slot_one_off, is_contiguous_attention),
    (pages_in_the_order_of_the_pool, is_contiguous_attention),
    (table_of_batch_0, is_contiguous_attention),
    (lengths_of_batch_0, is_contiguous_attention),
    (whole_pages, does_not_show_what_is_not_there),
    (absent_values_times_0, does_not_show_what_is_not_there),
    (whole_row_of_the_table, looks_at_no_entry_behind_the_last),
    (page_size_a_power_of_two, takes_every_page_size),
    (no_keys_give_one, takes_sequences_without_keys),
]


test_the_reference_keeps_the_law, test_a_fault_breaks_the_law, test_each_law_finds_a_fault = law_tests(
    (paged_attention,), LAWS, FAULTS
)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=3).filter(any), st.integers(1, 256), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_page_size_and_any_order_of_pages(lengths: list[int], page_size: int, seed: int) -> None:
    call = paged(lengths, page_size, seed=seed, q_len=1 + seed % 3)
    is_contiguous_attention(paged_attention, call)
    for b, n in enumerate(lengths):
        keys = contiguous(call.key_pages, call.block_table, call.key_lengths)
        assert torch.equal(keys[b, :, :n], call.key[b, :, :n])


def test_packed_queries_are_those_of_each_sequence_alone() -> None:
    """A decode step, a prefill, a sequence without queries and one without keys in one batch."""
    call, counts = paged([7, 4, 9, 0], 4, q_len=4), [1, 4, 0, 2]
    query = torch.cat([q[:, :n].transpose(0, 1) for q, n in zip(call.query, counts, strict=True)])
    cu_seqlens_q = torch.tensor([0, *counts]).cumsum(0)
    got = packed_paged_attention(
        query, call.key_pages, call.value_pages, cu_seqlens_q, call.block_table, call.key_lengths, is_causal=True
    )
    assert got.lse is not None
    for b, (queries, n) in enumerate(zip(spans(cu_seqlens_q, len(query)), counts, strict=True)):
        one = replace(
            call,
            query=call.query[b : b + 1, :, :n],
            block_table=call.block_table[b : b + 1],
            key_lengths=call.key_lengths[b : b + 1],
        )
        alone = paged_attention(*one.tensors(), is_causal=True)
        assert alone.lse is not None
        assert_same(
            Result(got.output[queries].transpose(0, 1), got.lse[:, queries]), Result(alone.output[0], alone.lse[0])
        )


def test_an_explicit_scale_and_an_empty_batch() -> None:
    call = paged([7, 4], 4, q_len=2)
    want = attention(call.query, call.key, call.value, scale=-0.7, enable_gqa=True, key_lengths=call.key_lengths)
    assert_same(paged_attention(*call.tensors(), scale=-0.7), want)
    query, pages, two = (
        call.query.transpose(1, 2).flatten(0, 1),
        (call.key_pages, call.value_pages),
        torch.tensor([0, 2, 4]),
    )
    packed = packed_paged_attention(query, *pages, two, call.block_table, call.key_lengths, scale=-0.7)
    torch.testing.assert_close(packed.output, want.output.transpose(1, 2).flatten(0, 1), rtol=TOLERANCE, atol=TOLERANCE)
    nothing = paged_attention(call.query[:0], *pages, call.block_table[:0], call.key_lengths[:0])
    assert nothing.output.shape == (0, 4, 2, 3)
    assert contiguous(call.key_pages, call.block_table[:0], call.key_lengths[:0]).shape == (0, 2, 0, 5)


def test_a_paged_step_is_one_of_the_cache() -> None:
    call = paged([7, 4, 9], 4, q_len=3)
    cache = KVCache(3, 2, 9, 5, 3, torch.float64)
    cache.append(call.key, call.value, call.key_lengths)
    assert_same(paged_attention(*call.tensors(), is_causal=True), attend_cache(call.query, cache))


def test_the_truth_is_that_of_the_keys_in_order() -> None:
    call = paged([3, 0, 5], 2)
    true = exact_attention(
        call.query.numpy(), call.key.numpy(), call.value.numpy(), enable_gqa=True, key_lengths=call.key_lengths.numpy()
    )
    assert_same(paged_attention(*call.tensors()), Result(torch.from_numpy(true.output), torch.from_numpy(true.lse)))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_table": torch.tensor([[0, 9], [1, 2]])}, "block_table has 9 at (0, 1): use 0 to 8"),
        ({"block_table": torch.tensor([[0, 1], [-1, 2]])}, "block_table has -1 at (1, 0): use 0 to 8"),
        ({"key_lengths": torch.tensor([5, 2])}, "key_lengths has 5 for batch 0: use 0 to 4, the slots of its pages"),
        ({"key_lengths": torch.tensor([3, -1])}, "key_lengths has -1 for batch 1: use 0 to 4, the slots of its pages"),
        ({"key_lengths": torch.tensor([3.0, 2.0])}, "key_lengths is torch.float32: use torch.int32 or torch.int64"),
        (
            {"key_lengths": torch.tensor([3])},
            "block_table (2, 2) and key_lengths (1,): use (batch, max_blocks) and (batch,)",
        ),
        (
            {"key_pages": torch.zeros(9, 0, 2, 5), "value_pages": torch.zeros(9, 0, 2, 3)},
            "page_size is 0: use 1 or more",
        ),
        (
            {"value_pages": torch.zeros(9, 3, 2, 3)},
            "key_pages (9, 2, 2, 5) and value_pages (9, 3, 2, 3) differ in blocks, page size or heads",
        ),
        (
            {"key_pages": torch.zeros(9, 2, 5), "value_pages": torch.zeros(9, 2, 5)},
            "pages have 3 dimensions: use (num_blocks, page_size, kv_heads, dim)",
        ),
    ],
)
def test_a_call_that_cannot_be_is_told_in_one_line(changes: dict[str, torch.Tensor], message: str) -> None:
    pages = torch.zeros(9, 2, 2, 5), torch.zeros(9, 2, 2, 3)
    table, lengths, unused = torch.tensor([[0, 1], [2, 3]]), torch.tensor([3, 2]), torch.empty(0)
    call = Paged(torch.zeros(2, 4, 1, 5), *pages, table, lengths, unused, unused)
    with pytest.raises(InputError) as caught:
        paged_attention(*replace(call, **changes).tensors())
    assert str(caught.value) == message
