"""Decoding with a KV cache: against one causal call over the whole sequence, the exact oracle, planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.implementations import grouped
from attnspec.reference import exact, kv_cache
from attnspec.reference.attention import attention
from attnspec.reference.kv_cache import KVCache, attend, decode
from attnspec.spec.call import Result

CLOSE = 1e-13


# ---------------------------------------------------------------- helpers


@dataclass(frozen=True)
class Story:
    """How the sequences of a batch grow: steps[s][b] tokens are appended to sequence b in step s."""

    steps: tuple[tuple[int, ...], ...]
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 3
    value_dim: int = 5
    spare: int = 2
    seed: int = 0

    @property
    def totals(self) -> list[int]:
        """Length of each sequence at the end."""
        return [sum(step[b] for step in self.steps) for b in range(len(self.steps[0]))]

    def cache(self, make: type[KVCache] = KVCache) -> KVCache:
        """Return an empty cache that holds the story and `spare` tokens more."""
        capacity = max(self.totals) + self.spare
        return make(len(self.totals), self.kv_heads, capacity, self.head_dim, self.value_dim, torch.float64)

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value of all tokens: (batch, heads, longest, dim)."""
        draw = torch.Generator().manual_seed(self.seed)
        shape = (len(self.totals), max(self.totals))
        dims = ((self.q_heads, self.head_dim), (self.kv_heads, self.head_dim), (self.kv_heads, self.value_dim))
        query, key, value = (
            torch.randn(shape[0], heads, shape[1], dim, generator=draw, dtype=torch.float64) for heads, dim in dims
        )
        return query, key, value


def chunk(tensor: torch.Tensor, starts: list[int], lengths: tuple[int, ...]) -> torch.Tensor:
    """Return lengths[b] tokens of each sequence from starts[b] on; the rest of the chunk is NaN."""
    batch, heads, _, dim = tensor.shape
    cut = torch.full((batch, heads, max(lengths), dim), torch.nan, dtype=tensor.dtype)
    for b, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        cut[b, :, :length] = tensor[b, :, start : start + length]
    return cut


def told(story: Story, cache: KVCache, step: Callable[..., Result] = decode) -> Result:
    """Return output and lse of every token, decoded step by step; what no token has is 0 and -inf."""
    tokens, starts = story.tokens(), [0] * len(story.totals)
    output = torch.zeros(*tokens[0].shape[:3], story.value_dim, dtype=torch.float64)
    lse = torch.full(tokens[0].shape[:3], -torch.inf, dtype=torch.float64)
    for lengths in story.steps:
        result = step(*(chunk(x, starts, lengths) for x in tokens), cache, lengths=torch.tensor(lengths))
        assert result.lse is not None
        for b, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            output[b, :, start : start + length] = result.output[b, :, :length]
            lse[b, :, start : start + length] = result.lse[b, :, :length]
            assert (result.output[b, :, length:] == 0).all()
            assert (result.lse[b, :, length:] == -torch.inf).all()
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    return Result(output, lse)


def prefill(story: Story) -> Result:
    """Return output and lse of every token from one causal call a sequence."""
    query, key, value = story.tokens()
    output = torch.zeros(*query.shape[:3], story.value_dim, dtype=torch.float64)
    lse = torch.full(query.shape[:3], -torch.inf, dtype=torch.float64)
    for b, n in enumerate(story.totals):
        q, k, v = (x[b : b + 1, :, :n] for x in (query, key, value))
        one = attention(q, k, v, is_causal=True, enable_gqa=True)
        assert one.lse is not None
        output[b, :, :n], lse[b, :, :n] = one.output[0], one.lse[0]
    return Result(output, lse)


def same(left: Result, right: Result, within: float = CLOSE) -> bool:
    """Whether output and lse agree; infinities only with their like, NaN with nothing."""
    assert left.lse is not None
    assert right.lse is not None
    return torch.allclose(left.output, right.output, rtol=within, atol=within) and torch.allclose(
        left.lse, right.lse, rtol=within, atol=within
    )


def state(cache: KVCache) -> tuple[bytes, ...]:
    """Return every bit that a cache holds."""
    return tuple(x.numpy().tobytes() for x in (cache.key, cache.value, cache.lengths))


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Draw a batch of up to 3 sequences that grow in up to 5 steps of 0 to 4 tokens, at least one token in all."""
    batch = draw(st.integers(1, 3))
    step = st.tuples(*[st.integers(0, 4)] * batch)
    steps = draw(st.lists(step, min_size=1, max_size=5).filter(lambda steps: any(map(any, steps))))
    return Story(
        tuple(steps),
        kv_heads=draw(st.sampled_from([1, 2, 4])),
        value_dim=draw(st.sampled_from([1, 3, 5])),
        spare=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 2**31)),
    )


drawn = settings(derandomize=True, deadline=None, max_examples=80, database=None)


# ---------------------------------------------------------------- laws


@drawn
@given(stories())
def test_append_and_decode_is_prefill(story: Story) -> None:
    assert same(told(story, story.cache()), prefill(story))


@drawn
@given(stories())
def test_any_chunking_stores_the_same_bits(story: Story) -> None:
    stepwise, at_once = story.cache(), story.cache()
    told(story, stepwise)
    _, key, value = story.tokens()
    at_once.append(key, value, torch.tensor(story.totals))
    assert state(stepwise) == state(at_once)


@drawn
@given(stories(), st.booleans())
def test_attending_the_cache_is_the_call_with_key_lengths(story: Story, is_causal: bool) -> None:
    cache = story.cache()
    told(story, cache)
    query = story.tokens()[0]
    options: dict[str, Any] = {"is_causal": is_causal, "causal_alignment": "lower_right", "enable_gqa": True}
    whole = attention(query, cache.key, cache.value, key_lengths=cache.lengths, **options)
    assert cache.key.isnan().any() == (cache.lengths < cache.capacity).any()
    assert same(attend(query, cache, is_causal=is_causal), whole)


def step_of_a_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: KVCache, *, lengths: torch.Tensor
) -> Result:
    """Decode with a kernel that knows key_lengths alone: each sequence's queries stand in the last rows."""
    cache.append(key, value, lengths)
    rows = (torch.arange(query.shape[2]) + lengths[:, None]) % query.shape[2]  # the first m rows go to the end
    there = torch.arange(query.shape[2]) < lengths[:, None]
    options = {"is_causal": True, "enable_gqa": True, "return_lse": True, "key_lengths": cache.lengths}
    moved = query.nan_to_num().take_along_dim(rows[:, None, :, None], 2)
    output, lse = grouped.backend(moved, cache.key, cache.value, **options)
    back = (torch.arange(query.shape[2]) - lengths[:, None]) % query.shape[2]
    output, lse = output.take_along_dim(back[:, None, :, None], 2), lse.take_along_dim(back[:, None, :], 2)
    here = there[:, None, :]
    return Result(output.where(here[..., None], 0.0), lse.where(here, -torch.inf))


@drawn
@given(stories())
def test_a_kernel_with_key_lengths_alone_decodes(story: Story) -> None:
    assert same(told(story, story.cache(), step_of_a_kernel), prefill(story))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_decode_step_agrees_with_the_exact_oracle(kv_heads: int) -> None:
    story = Story(((3, 1), (1, 1), (2, 0), (1, 3)), kv_heads=kv_heads)
    found = told(story, story.cache())
    query, key, value = (x.numpy() for x in story.tokens())
    for b, n in enumerate(story.totals):
        q, k, v = (x[b : b + 1, :, :n] for x in (query, key, value))
        truth = exact.attention(q, k, v, is_causal=True, enable_gqa=True)
        true = Result(torch.from_numpy(truth.output), torch.from_numpy(truth.lse))
        assert found.lse is not None
        assert same(Result(found.output[b : b + 1, :, :n], found.lse[b : b + 1, :, :n]), true)


@pytest.mark.parametrize("content", [math.nan, math.inf, 1e300])
def test_unused_slots_never_show(content: float) -> None:
    story = Story(((3, 0, 2), (1, 0, 1)))
    clean = told(story, story.cache())
    cache = story.cache()
    cache.key.fill_(content)
    cache.value.fill_(content)
    assert same(told(story, cache), clean, 0.0)


def test_gradients_reach_the_tokens_through_the_cache() -> None:
    story = Story(((2, 1), (1, 2)))
    cached, plain = (tuple(x.requires_grad_() for x in story.tokens()) for _ in range(2))
    cache, starts = story.cache(), [0, 0]
    total = torch.zeros((), dtype=torch.float64)
    for lengths in story.steps:
        chunks = (chunk(x, starts, lengths) for x in cached)
        total = total + decode(*chunks, cache, lengths=torch.tensor(lengths)).output.square().sum()
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    total.backward()
    attention(*plain, is_causal=True, enable_gqa=True).output.square().sum().backward()
    for left, right in zip(cached, plain, strict=True):
        assert left.grad is not None
        assert right.grad is not None
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- planted faults


class Overwrites(KVCache):
    """Writes over the last token."""

    def append(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None) -> None:
        after = self.lengths + (key.shape[2] if lengths is None else lengths)
        self.lengths = (self.lengths - 1).clamp(min=0)
        super().append(key, value, lengths)
        self.lengths = after


class Reverses(KVCache):
    """Stores each chunk from its last token on."""

    def append(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None) -> None:
        before = self.lengths
        super().append(key, value, lengths)
        for b, (start, end) in enumerate(zip(before.tolist(), self.lengths.tolist(), strict=True)):
            for x in (self.key, self.value):
                x[b, :, start:end] = x[b, :, start:end].flip(1)


class TakesAll(KVCache):
    """Stores the padding of a ragged chunk too."""

    def append(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None) -> None:
        super().append(key, value, torch.full_like(self.lengths, key.shape[2]))


class MixesLengths(KVCache):
    """Takes the lengths of the first sequence for all."""

    def append(self, key: torch.Tensor, value: torch.Tensor, lengths: torch.Tensor | None = None) -> None:
        super().append(key, value, lengths)
        self.lengths = self.lengths[:1].expand_as(self.lengths).clone()


@pytest.mark.parametrize("make", [KVCache, Overwrites, Reverses, TakesAll, MixesLengths])
def test_the_law_tells_right_from_wrong_caches(make: type[KVCache]) -> None:
    story = Story(((3, 2), (1, 2), (2, 1)), spare=9)
    assert same(told(story, story.cache(make)), prefill(story)) == (make is KVCache)


def test_the_law_tells_the_wrong_corner(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(((3, 2), (1, 2), (2, 1)))
    wrong = {"causal_alignment": "upper_left"}
    monkeypatch.setattr(kv_cache, "attention", lambda *tensors, **options: attention(*tensors, **options | wrong))
    assert not same(told(story, story.cache()), prefill(story), 1e-3)
