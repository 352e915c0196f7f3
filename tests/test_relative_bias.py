"""The relative position bias: its buckets in balls, the bias by hand, its gradient, and the faults of each law."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, ctx
from laws import law_tests

from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.exact.relative_bias import buckets, first_distances
from attnspec.reference.relative_bias import bucket, relative_bias, relative_bias_backward
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
Buckets = Callable[..., torch.Tensor]
Bias = Callable[..., torch.Tensor]
T = torch.Tensor


def assert_close(got: T | None, want: T | None) -> None:
    __tracebackhide__ = True
    torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


# ---------------------------------------------------------------- by hand


def test_buckets_of_t5_by_hand() -> None:
    t = torch.tensor([0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128, 10**6])
    want = [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 15, 15]
    assert bucket(-t).tolist() == want
    assert bucket(t).tolist() == [0, *(16 + b for b in want[1:])]
    assert bucket(t, bidirectional=False).tolist() == [0] * len(t)
    far = torch.tensor([-15, -16, -18, -19, -31, -113, -128, -(10**6)])
    assert bucket(far, bidirectional=False).tolist() == [15, 16, 16, 17, 21, 31, 31, 31]


def test_the_bias_of_two_heads_by_hand() -> None:
    table = torch.tensor([[0.0, 10.0], [1.0, 11.0], [2.0, 12.0], [3.0, 13.0]])  # two buckets for each direction
    got = relative_bias(table, 2, 3, max_distance=2, alignment="lower_right")
    assert got[0, 0].tolist() == [[1.0, 0.0, 3.0], [1.0, 1.0, 0.0]]
    assert got[0, 1].tolist() == [[11.0, 10.0, 13.0], [11.0, 11.0, 10.0]]
    upper_left = relative_bias(table, 2, 3, max_distance=2)
    assert upper_left[0, 0].tolist() == [[0.0, 3.0, 3.0], [1.0, 0.0, 3.0]]


# ---------------------------------------------------------------- laws of buckets


def floor_in_balls(t: int, count: int, max_distance: int) -> int | None:
    """The bucket by logarithms in balls; None where the number is an integer, as far as 200 bits tell."""
    exact, before = count // 2, ctx.prec
    if t < exact:
        return t
    ctx.prec = 200
    try:
        x = (arb(t) / exact).log() / (arb(max_distance) / exact).log() * (count - exact)
        low, high = (int(end.floor().unique_fmpz()) for end in (x.lower(), x.upper()))
    finally:
        ctx.prec = before
    return min(count - 1, exact + low) if low == high else None


SIZES = [(16, 128), (32, 128), (5, 160), (8, 40), (2, 3), (12, 500)]  # buckets of a direction, max_distance


def follows_the_logarithm(of: Buckets) -> None:
    for count, max_distance in SIZES:
        got = of(-torch.arange(3 * max_distance), num_buckets=2 * count, max_distance=max_distance).tolist()
        for t, mine in enumerate(got):
            want = floor_in_balls(t, count, max_distance)
            assert want is None or mine == want, (t, count, max_distance)


def meets_every_boundary(of: Buckets) -> None:
    """Where the logarithm is an integer the bucket is that of the integer, and one less just before."""
    for options, boundaries in (
        ({"num_buckets": 32, "max_distance": 128}, {16: 10, 32: 12, 64: 14}),
        ({"num_buckets": 20, "max_distance": 160}, {10: 6, 20: 7, 40: 8, 80: 9}),
    ):
        for t, want in boundaries.items():
            assert of(torch.tensor([-t, 1 - t]), **options).tolist() == [want, want - 1], t


def tells_the_directions_apart(of: Buckets) -> None:
    distance = torch.arange(-200, 201)
    both = of(distance)
    assert (both[distance <= 0] < 16).all()
    assert (both[distance > 0] >= 16).all()
    assert torch.equal(both[distance > 0] - 16, both[distance < 0].flip(0))
    causal = of(distance, bidirectional=False)
    assert (causal[distance >= 0] == 0).all()
    assert causal[distance <= 0].unique().tolist() == list(range(31, -1, -1))[::-1]


def directions_swapped(distance: T, **options: Any) -> T:
    return bucket(-distance, **options)


def by_logarithms(
    distance: T,
    bits: torch.dtype,
    ends: Callable[[T], T],
    *,
    num_buckets: int = 32,
    max_distance: int = 128,
    bidirectional: bool = True,
    small: int = 0,
    exact_of: int = 2,
    clip: int = 1,
) -> T:
    count = num_buckets // 2 if bidirectional else num_buckets
    first = count * (distance > 0) if bidirectional else 0
    t = distance.abs() if bidirectional else (-distance).clamp(min=0)
    exact = count // exact_of
    x = (t.clamp(min=1).to(bits) / exact).log() / math.log(max_distance / exact) * (count - exact)
    return first + torch.where(t < exact + small, t, (exact + ends(x).long()).clamp(max=count - clip))


def logarithms_of_float64(distance: T, **options: Any) -> T:
    return by_logarithms(distance, torch.float64, torch.floor, **options)


def rounded_to_the_nearest(distance: T, **options: Any) -> T:
    return by_logarithms(distance, torch.float64, torch.round, **options)


def one_exact_bucket_more(distance: T, **options: Any) -> T:
    return by_logarithms(distance, torch.float64, torch.floor, small=1, **options)


def a_quarter_exact(distance: T, **options: Any) -> T:
    return by_logarithms(distance, torch.float64, torch.floor, exact_of=4, **options)


def last_bucket_left_out(distance: T, **options: Any) -> T:
    return by_logarithms(distance, torch.float64, torch.floor, clip=2, **options)


def max_distance_of_t5(distance: T, *, max_distance: int = 128, **options: Any) -> T:
    return bucket(distance, **options)


def future_folded(distance: T, *, bidirectional: bool = True, **options: Any) -> T:
    """Without directions the future takes the buckets of the past."""
    return bucket(distance if bidirectional else -distance.abs(), bidirectional=bidirectional, **options)


BUCKET_LAWS = (follows_the_logarithm, meets_every_boundary, tells_the_directions_apart)
BUCKET_FAULTS = [
    *(
        (fault, follows_the_logarithm)
        for fault in (
            directions_swapped,
            rounded_to_the_nearest,
            a_quarter_exact,
            last_bucket_left_out,
            max_distance_of_t5,
        )
    ),
    (logarithms_of_float64, meets_every_boundary),
    (rounded_to_the_nearest, meets_every_boundary),
    (directions_swapped, tells_the_directions_apart),
    (future_folded, tells_the_directions_apart),
]

# ---------------------------------------------------------------- laws of the bias


def is_a_column_of_the_table_at_its_distance(bias: Bias) -> None:
    table = torch.arange(32.0)[:, None] + 100 * torch.arange(3.0)
    for q_len, k_len, alignment in ((4, 4, "lower_right"), (3, 40, "lower_right"), (40, 3, "upper_left")):
        got = bias(table, q_len, k_len, alignment=alignment)
        assert got.shape == (1, 3, q_len, k_len)
        offset = k_len - q_len if alignment == "lower_right" else 0
        for h in range(3):
            for i in range(q_len):
                want = bucket(torch.arange(k_len) - i - offset) + 100 * h
                assert got[0, h, i].tolist() == want.tolist()


def decodes_as_it_prefills(bias: Bias) -> None:
    table = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
    whole = bias(table, 30, 30, bidirectional=False)
    for t in range(30):
        step = bias(table, 1, t + 1, bidirectional=False, alignment="lower_right")
        assert torch.equal(step[:, :, 0], whole[:, :, t, : t + 1])


def without_offset(table: T, q_len: int, k_len: int, **options: Any) -> T:
    return relative_bias(table, q_len, k_len, **options | {"alignment": "upper_left"})


def heads_in_reverse(table: T, q_len: int, k_len: int, **options: Any) -> T:
    return relative_bias(table, q_len, k_len, **options).flip(1)


def query_minus_key(table: T, q_len: int, k_len: int, **options: Any) -> T:
    half = len(table) // 2
    return relative_bias(torch.cat([table[half:], table[:half]]), q_len, k_len, **options)


BIAS_LAWS = (is_a_column_of_the_table_at_its_distance, decodes_as_it_prefills)
BIAS_FAULTS = [
    (without_offset, is_a_column_of_the_table_at_its_distance),
    (heads_in_reverse, is_a_column_of_the_table_at_its_distance),
    (query_minus_key, is_a_column_of_the_table_at_its_distance),
    (without_offset, decodes_as_it_prefills),
]


test_buckets_keep_the_law, test_a_fault_of_buckets_breaks_the_law, test_each_law_of_buckets_finds_a_fault = law_tests(
    (bucket,), BUCKET_LAWS, BUCKET_FAULTS
)
test_the_bias_keeps_the_law, test_a_fault_of_the_bias_breaks_the_law, test_each_law_of_the_bias_finds_a_fault = (
    law_tests((relative_bias,), BIAS_LAWS, BIAS_FAULTS)
)


# ---------------------------------------------------------------- truth and gradients


def drawn() -> list[T]:
    """Return query, key, value and a table of 8 buckets, with 2 heads."""
    generator = torch.Generator().manual_seed(5)
    shapes = (2, 2, 3, 4), (2, 2, 7, 4), (2, 2, 7, 3), (8, 2)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def test_the_truth_is_exact_attention_with_the_bias() -> None:
    query, key, value, table = drawn()
    bias = relative_bias(table, 3, 7, max_distance=5)
    true = exact_attention(query.numpy(), key.numpy(), value.numpy(), attn_mask=bias.numpy(), scale=1.0)
    got = attention(query, key, value, attn_mask=bias, scale=1.0)
    assert_close(got.output, torch.from_numpy(true.output))
    assert_close(got.lse, torch.from_numpy(true.lse))


def test_the_gradient_of_t5s_buckets_by_hand() -> None:
    got = relative_bias_backward(torch.arange(1.0, 131.0).reshape(1, 1, 1, 130), 32, alignment="lower_right")
    assert got[:8, 0].tolist() == [130 - t for t in range(8)]
    assert got[15, 0] == sum(130 - t for t in range(91, 130))
    assert (got[16:] == 0).all()
    assert (relative_bias_backward(torch.ones(1, 1, 2, 1), 32)[[0, 1], 0] == 1).all()


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("alignment", ["lower_right", "upper_left"])
def test_the_gradient_of_the_table_is_that_of_autograd(bidirectional: bool, alignment: str) -> None:
    given = [x.requires_grad_() for x in drawn()]
    options: dict[str, Any] = {"max_distance": 5, "bidirectional": bidirectional, "alignment": alignment}
    bias = relative_bias(given[3], 3, 7, **options)
    result = attention(*given[:3], attn_mask=bias)
    grad_output = torch.randn(result.output.shape, dtype=torch.float64)
    want = torch.autograd.grad((result.output * grad_output).sum(), given)
    got = backward(*given[:3], grad_output, attn_mask=bias.detach())
    assert got.attn_mask is not None
    assert_close(relative_bias_backward(got.attn_mask.detach(), 8, **options), want[3])
    assert (want[3] != 0).any()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: bucket(torch.tensor(1), num_buckets=7),
            "num_buckets is 7: use an even number where it is bidirectional",
        ),
        (lambda: bucket(torch.tensor(1), num_buckets=2), "num_buckets is 2: use 2 or more for a direction"),
        (
            lambda: bucket(torch.tensor(1), max_distance=8),
            "max_distance is 8: use more than 8, the buckets of one distance",
        ),
        (lambda: relative_bias(torch.zeros(8), 2, 2), "table is torch.float32 (8,): use floating (num_buckets, heads)"),
        (
            lambda: relative_bias(torch.zeros(8, 2), 2, 2, alignment="left"),
            "alignment is 'left': use one of upper_left, lower_right",
        ),
        (lambda: bucket(torch.tensor(1), num_buckets=8.0), "num_buckets is 8.0: use a whole number, an int"),
        (lambda: bucket(torch.tensor(1), max_distance="9"), "max_distance is '9': use a whole number, an int"),
        (
            lambda: relative_bias_backward(torch.zeros(2, 3, 4), 8),
            "grad_bias is torch.float32 (2, 3, 4): use floating (batch or 1, heads, q_len, k_len)",
        ),
        (
            lambda: relative_bias_backward(torch.zeros(1, 2, 3, 4, dtype=torch.int32), 8),
            "grad_bias is torch.int32 (1, 2, 3, 4): use floating (batch or 1, heads, q_len, k_len)",
        ),
        (
            lambda: relative_bias_backward(torch.zeros(1, 2, 3, 4), "8"),
            "num_buckets is '8': use a whole number, an int",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        act()
    assert str(caught.value) == message


# ---------------------------------------------------------------- the second oracle


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16, 31, 32])
@pytest.mark.parametrize("ratio", [1, 2, 7, 32])
def test_first_distances_are_where_the_bucket_of_the_reference_rises(count: int, ratio: int) -> None:
    max_distance = count // 2 * ratio + 1
    starts = first_distances(count, max_distance)
    rises = bucket(-torch.tensor(starts), num_buckets=count, max_distance=max_distance, bidirectional=False)
    before = bucket(1 - torch.tensor(starts[1:]), num_buckets=count, max_distance=max_distance, bidirectional=False)
    assert len(starts) == count
    first = [max(k for k in range(count) if starts[k] == start) for start in starts]  # a bucket may be empty
    assert rises.tolist() == first
    assert all(b < a for a, b in zip(first[1:], before.tolist(), strict=True))


def test_buckets_of_the_second_oracle_by_hand() -> None:
    assert first_distances(16, 128) == [*range(9), 12, 16, 23, 32, 46, 64, 91]
    distance = np.array([0, -1, 1, -8, 8, -128, 128])
    got = buckets(distance, num_buckets=32, max_distance=128, bidirectional=True)
    assert got.tolist() == [0, 1, 17, 8, 24, 15, 31]
    causal = buckets(distance, num_buckets=16, max_distance=128, bidirectional=False)
    assert causal.tolist() == [0, 1, 0, 8, 0, 15, 0]
    with pytest.raises(InputError, match="use an even number"):
        buckets(distance, num_buckets=31, max_distance=128, bidirectional=True)
    with pytest.raises(InputError, match="1 buckets and max_distance 128"):
        first_distances(1, 128)
