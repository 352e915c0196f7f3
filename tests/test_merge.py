"""Merging parts by their lse: by hand, its laws for any split and order, and what a naive merge gets wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.attention import attention
from attnspec.reference.merge import Part, merge, merge_two
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
EMPTY = -math.inf


def part(output: float, lse: float) -> Part:
    """Return the part of one row with one value."""
    return Part(torch.tensor([[output]], dtype=torch.float64), torch.tensor([lse], dtype=torch.float64))


def numbers(merged: Part) -> tuple[float, float]:
    """Return output and lse of one row with one value."""
    return merged.output.item(), merged.lse.item()


def assert_close(result: Part, expected: Part) -> None:
    """Compare output and lse, -inf where -inf is expected."""
    __tracebackhide__ = True
    for got, want in zip(result, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


def scores_and_values(seed: int, q_len: int, k_len: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores (1, 1, q_len, k_len), about a third of them hidden, and values (1, 1, k_len, 3)."""
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(1, 1, q_len, k_len, generator=generator, dtype=torch.float64)
    hidden = torch.rand(1, 1, q_len, k_len, generator=generator) < 0.3
    value = torch.randn(1, 1, k_len, 3, generator=generator, dtype=torch.float64)
    return scores.masked_fill(hidden, EMPTY), value


def attend(scores: torch.Tensor, value: torch.Tensor, keys: list[int]) -> Part:
    """Return attention over some keys."""
    some = torch.tensor(keys, dtype=torch.long)
    query, key = torch.zeros(1, 1, scores.shape[2], 1), torch.zeros(1, 1, len(keys), 1)
    result = attention(query.double(), key.double(), value[:, :, some], attn_mask=scores[..., some])
    assert result.lse is not None
    return Part(result.output, result.lse)


splits = st.integers(0, 12).flatmap(
    lambda k_len: st.tuples(st.just(k_len), st.lists(st.integers(0, 5), min_size=k_len, max_size=k_len))
)  # a number of keys, and the part of 6 in which each stands: parts may be empty


def test_equal_parts_by_hand() -> None:
    output, lse = numbers(merge_two(part(1.0, math.log(2)), part(5.0, math.log(6))))
    assert output == pytest.approx((2 * 1.0 + 6 * 5.0) / 8)
    assert lse == pytest.approx(math.log(8))


@given(splits, st.sampled_from([1.0, 90.0, 1000.0]), st.integers(0, 2**31), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_split_in_any_order_gives_the_whole(
    split: tuple[int, list[int]], spread: float, seed: int, order: random.Random
) -> None:
    k_len, place = split
    scores, value = scores_and_values(seed, 4, k_len, spread)
    parts = [attend(scores, value, [j for j in range(k_len) if place[j] == p]) for p in range(6)]
    order.shuffle(parts)
    assert_close(merge(parts), attend(scores, value, list(range(k_len))))


@given(st.lists(st.sampled_from([EMPTY, -1000.0, -90.0, 0.0, 0.5, 90.0, 1000.0]), min_size=3, max_size=3))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_merging_is_associative_and_commutative(lses: list[float]) -> None:
    a, b, c = (part(0.0 if lse == EMPTY else x, lse) for x, lse in zip((1.0, -2.0, 7.0), lses, strict=True))
    assert_close(merge_two(merge_two(a, b), c), merge_two(a, merge_two(b, c)))
    for left, right in zip(merge_two(a, b), merge_two(b, a), strict=True):
        assert torch.equal(left, right)  # sums of two numbers round alike in either order


@pytest.mark.parametrize("lse", [-1000.0, -90.0, 0.0, 90.0, 1000.0])
@pytest.mark.parametrize("junk", [0.0, 3.0, math.inf, math.nan])
def test_an_empty_part_changes_nothing(lse: float, junk: float) -> None:
    for pair in ((part(2.5, lse), part(junk, EMPTY)), (part(junk, EMPTY), part(2.5, lse))):
        assert numbers(merge_two(*pair)) == (2.5, lse)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_empty_parts_make_an_empty_row(count: int) -> None:
    assert numbers(merge([part(math.nan, EMPTY)] * count)) == (0.0, EMPTY)


@pytest.mark.parametrize("base", [-2000.0, -88.0, 0.0, 88.0, 2000.0])
@pytest.mark.parametrize("gap", [90.0, 1000.0])
def test_a_gap_leaves_the_larger_part(base: float, gap: float) -> None:
    output, lse = numbers(merge_two(part(3.0, base), part(-7.0, base - gap)))
    assert output == pytest.approx(3.0 - 10.0 * math.exp(-gap), rel=1e-15)
    assert lse == base


@pytest.mark.parametrize("place", ["output", "lse"])
def test_a_nan_that_is_seen_comes_through(place: str) -> None:
    faulty = part(math.nan, 0.0) if place == "output" else part(1.0, math.nan)
    output, lse = numbers(merge_two(faulty, part(2.0, 1.0)))
    assert math.isnan(output)
    assert math.isnan(lse) == (place == "lse")


def naive(a: Part, b: Part) -> Part:
    """Merge without taking the maximum out."""
    weight_a, weight_b = a.lse.exp()[..., None], b.lse.exp()[..., None]
    total = weight_a + weight_b
    return Part((weight_a * a.output + weight_b * b.output) / total, total.log().squeeze(-1))


def unguarded(a: Part, b: Part) -> Part:
    """Merge without a thought for two empty parts."""
    top = torch.maximum(a.lse, b.lse)
    return naive(Part(a.output, a.lse - top), Part(b.output, b.lse - top))


def averaging(a: Part, b: Part) -> Part:
    """Merge the outputs with equal weights."""
    return Part((a.output + b.output) / 2, torch.logaddexp(a.lse, b.lse))


@pytest.mark.parametrize(
    ("fault", "a", "b"),
    [
        (naive, part(3.0, 1000.0), part(2.0, 0.0)),
        (naive, part(3.0, -1000.0), part(2.0, -1090.0)),
        (unguarded, part(0.0, EMPTY), part(0.0, EMPTY)),
        (averaging, part(3.0, 1.0), part(2.0, 0.0)),
    ],
)
def test_faulty_merges_are_told_apart(fault: Callable[[Part, Part], Part], a: Part, b: Part) -> None:
    with pytest.raises(AssertionError):
        assert_close(fault(a, b), merge_two(a, b))


def test_parts_in_narrow_dtypes_are_merged_in_float64() -> None:
    halves = [Part(torch.ones(1, 2, dtype=torch.bfloat16), torch.zeros(1)) for _ in range(2)]
    merged = merge(halves)
    assert merged.output.dtype == merged.lse.dtype == torch.float64
    assert merged.lse.item() == pytest.approx(math.log(2), rel=1e-15)
    assert merge(halves[:1]).output.dtype == torch.float64


def test_bad_parts_are_told_in_one_line() -> None:
    a, b = part(1.0, 0.0), Part(torch.zeros(2, 1), torch.zeros(2))
    for parts, complaint in (([], "no parts"), ([a, b], "differ in shape"), ([Part(a.output, b.lse)], "does not fit")):
        with pytest.raises(InputError, match=complaint):
            merge(parts)
