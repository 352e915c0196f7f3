"""The KV cache: by hand, what it stores, its size, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from attnspec.reference.kv_cache import KVCache, attend, decode
from attnspec.spec.errors import InputError


def state(cache: KVCache) -> tuple[bytes, ...]:
    """Return every bit that a cache holds."""
    return tuple(x.numpy().tobytes() for x in (cache.key, cache.value, cache.lengths))


# ---------------------------------------------------------------- by hand


def test_a_decode_step_averages_what_is_stored() -> None:
    cache = KVCache(1, 1, 3, 1)
    outputs = []
    for x in (1.0, 3.0, 5.0):
        token = torch.full((1, 1, 1, 1), x)
        result = decode(token, token, token, cache, scale=0)
        assert result.lse is not None
        outputs.append((result.output.item(), result.lse.item()))
    assert outputs == [(1.0, 0.0), (2.0, math.log(2)), (3.0, math.log(3))]
    assert cache.key.flatten().tolist() == [1.0, 3.0, 5.0]


def test_tokens_go_behind_those_of_their_sequence_and_nothing_else_changes() -> None:
    cache = KVCache(3, 1, 4, 1)
    first, second = torch.arange(6.0).reshape(3, 1, 2, 1), torch.arange(10.0, 16.0).reshape(3, 1, 2, 1)
    cache.append(first, -first, torch.tensor([2, 1, 0]))
    cache.append(second, -second, torch.tensor([1, 2, 0], dtype=torch.int32))
    assert cache.lengths.tolist() == [3, 3, 0]
    stored = [[0.0, 1.0, 10.0], [2.0, 12.0, 13.0], []]
    for b, n in enumerate((3, 3, 0)):
        assert cache.key[b, 0, :n, 0].tolist() == stored[b]
        assert cache.value[b, 0, :n, 0].tolist() == [-x for x in stored[b]]
        assert cache.key[b, 0, n:].isnan().all()
        assert cache.value[b, 0, n:].isnan().all()


@pytest.mark.parametrize(
    ("kv_heads", "value_dim", "dtype", "expected"),
    [
        (32, None, torch.bfloat16, 67108864),  # MHA, GQA and MQA of the chapter's table
        (8, None, torch.bfloat16, 16777216),
        (1, None, torch.bfloat16, 2097152),
        (1, 512, torch.float16, 5242880),  # 4096 * (128 + 512) * 2
        (8, None, torch.float32, 33554432),
    ],
)
def test_bytes(kv_heads: int, value_dim: int | None, dtype: torch.dtype, expected: int) -> None:
    cache = KVCache(1, kv_heads, 4096, 128, value_dim, dtype)
    assert cache.bytes == cache.key.nbytes + cache.value.nbytes == expected
    assert KVCache(3, kv_heads, 4096, 128, value_dim, dtype).bytes == 3 * expected


def test_an_empty_cache_gives_empty_rows() -> None:
    result = attend(torch.ones(2, 4, 3, 3), KVCache(2, 2, 5, 3))
    assert result.lse is not None
    assert (result.output == 0).all()
    assert (result.lse == -torch.inf).all()


def test_more_queries_than_tokens_leave_the_first_rows_empty() -> None:
    cache = KVCache(1, 1, 4, 1)
    cache.append(torch.ones(1, 1, 2, 1), torch.tensor([2.0, 4.0]).reshape(1, 1, 2, 1))
    result = attend(torch.ones(1, 1, 3, 1), cache)
    assert result.lse is not None
    assert result.output.flatten().tolist() == [0.0, 2.0, 3.0]
    assert result.lse[0, 0, 0] == -torch.inf


# ---------------------------------------------------------------- refusals


def filled() -> KVCache:
    """Return a cache of capacity 4 that holds 3 and 1 tokens."""
    cache = KVCache(2, 2, 4, 3, 5)
    cache.append(torch.ones(2, 2, 3, 3), torch.ones(2, 2, 3, 5), torch.tensor([3, 1]))
    return cache


@pytest.mark.parametrize(
    ("key", "value", "lengths", "message"),
    [
        ((2, 2, 2, 3), (2, 2, 2, 5), None, "sequence 0 would have 5 tokens: the capacity is 4"),
        ((2, 2, 4, 3), (2, 2, 4, 5), [1, 4], "sequence 1 would have 5 tokens: the capacity is 4"),
        ((2, 2, 1, 3), (2, 2, 1, 5), [2, 0], "lengths has 2 for batch 0: use 0 to 1"),
        ((2, 2, 1, 3), (2, 2, 1, 5), [0, -1], "lengths has -1 for batch 1: use 0 to 1"),
        ((2, 2, 1, 3), (2, 2, 1, 5), [1], "lengths has shape (1,): use one length a batch element, (2,)"),
        ((2, 4, 1, 3), (2, 4, 1, 5), None, "key has shape (2, 4, 1, 3): use (2, 2, length, 3)"),
        ((1, 2, 1, 3), (1, 2, 1, 5), None, "key has shape (1, 2, 1, 3): use (2, 2, length, 3)"),
        ((2, 2, 1, 3), (2, 2, 1, 3), None, "value has shape (2, 2, 1, 3): use (2, 2, length, 5)"),
        ((2, 2, 3), (2, 2, 1, 5), None, "key has shape (2, 2, 3): use (2, 2, length, 3)"),
        ((2, 2, 1, 3), (2, 2, 0, 5), None, "key has 1 new tokens and value 0: use the same number"),
    ],
)
def test_an_append_that_is_refused_changes_nothing(
    key: tuple[int, ...], value: tuple[int, ...], lengths: list[int] | None, message: str
) -> None:
    cache = filled()
    before = state(cache)
    told_lengths = None if lengths is None else torch.tensor(lengths)
    new = (torch.zeros(key), torch.zeros(value))
    query = torch.zeros(2, 4, key[2] if len(key) == 4 else 1, 3)
    for act in (lambda: cache.append(*new, told_lengths), lambda: decode(query, *new, cache, lengths=told_lengths)):
        with pytest.raises(InputError) as caught:
            act()
        assert str(caught.value) == message
        assert state(cache) == before


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (torch.zeros(1, 4, 1, 3), "query has shape (1, 4, 1, 3): use (2, heads, length, 3)"),
        (torch.zeros(2, 4, 1, 5), "query has shape (2, 4, 1, 5)"),
        (torch.zeros(2, 3, 1, 3), "query has 3 heads and the cache 2: use a multiple"),
        (torch.zeros(2, 4, 2, 3), "query has 2 rows and key 1 new tokens"),
        (torch.zeros(2, 4, 1, 3, dtype=torch.float64), "query is torch.float64: use the cache's dtype, torch.float32"),
    ],
)
def test_a_decode_that_is_refused_changes_nothing(query: torch.Tensor, message: str) -> None:
    cache = filled()
    before = state(cache)
    with pytest.raises(InputError) as caught:
        decode(query, torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1, 5), cache)
    assert message in str(caught.value)
    assert state(cache) == before


def test_the_capacity_can_be_filled_exactly() -> None:
    cache = filled()
    cache.append(torch.zeros(2, 2, 3, 3), torch.zeros(2, 2, 3, 5), torch.tensor([1, 3]))
    assert cache.lengths.tolist() == [4, 4]
    cache.append(torch.zeros(2, 2, 0, 3), torch.zeros(2, 2, 0, 5))
    with pytest.raises(InputError, match="sequence 0 would have 5 tokens"):
        cache.append(torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1, 5))


def test_another_dtype_is_refused() -> None:
    with pytest.raises(InputError, match=r"^value is torch.float16: use the cache's dtype, torch.float32$"):
        filled().append(torch.zeros(2, 2, 1, 3), torch.zeros(2, 2, 1, 5, dtype=torch.float16))
    with pytest.raises(InputError, match=r"^cache is torch.int64: use a floating dtype$"):
        KVCache(1, 1, 1, 1, dtype=torch.int64)
    with pytest.raises(InputError, match=r"^cache of batch 1, kv_heads 0, capacity 1, head_dim 1, value_dim 1: use"):
        KVCache(1, 0, 1, 1)
