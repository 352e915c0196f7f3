"""Context parallelism: deals by hand, equal to one call for any deal, its gradients, and the faults of each law."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import law_tests

from attnspec.reference import context_parallel
from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.reference.context_parallel import (
    Shards,
    context_parallel_attention,
    context_parallel_backward,
    merge_backward,
    shards,
)
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.merge import Part, merge
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError

TOLERANCE = 1e-12  # for values of about 1 in float64
ORDERS = ("contiguous", "zigzag", "striped")
Kernel = Callable[..., Result]
T = torch.Tensor


def drawn(q_len: int = 9, k_len: int = 9, spread: float = 1.0) -> list[T]:
    """Return query, key and value with 4 and 2 heads, and a gradient of the output and of the lse."""
    generator = torch.Generator().manual_seed(q_len * 31 + k_len)
    shapes = (2, 4, q_len, 5), (2, 2, k_len, 5), (2, 2, k_len, 3), (2, 4, q_len, 3), (2, 4, q_len)
    query, *rest = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [query * spread, *rest]


def assert_close(got: T | None, want: T | None) -> None:
    __tracebackhide__ = True
    torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


# ---------------------------------------------------------------- by hand


def test_deals_by_hand() -> None:
    deal = {order: [x.tolist() for x in shards(8, 2, order)] for order in ORDERS}
    assert deal["contiguous"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert deal["zigzag"] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert deal["striped"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [x.tolist() for x in shards(2, 3)] == [[0], [1], []]


def test_two_keys_on_two_ranks_by_hand() -> None:
    value = torch.tensor([2.0, 6.0]).reshape(1, 1, 2, 1)
    key = torch.tensor([0.0, math.log(3)]).reshape(1, 1, 2, 1)
    one = torch.tensor([0])
    result = context_parallel_attention(torch.ones(1, 1, 1, 1), key, value, [one], [one, one + 1])
    assert result.lse is not None
    assert (result.output.item(), result.lse.item()) == pytest.approx((5.0, math.log(4)))


# ---------------------------------------------------------------- laws


def is_one_call(kernel: Kernel) -> None:
    for order in ORDERS:
        for ranks in (1, 2, 3, 12):  # 12 ranks for 9 positions: some are empty
            for spread in (1.0, 400.0):
                query, key, value, *_ = drawn(spread=spread)
                want = attention(query, key, value, enable_gqa=True)
                got = kernel(query, key, value, shards(9, ranks, order), shards(9, ranks, order), enable_gqa=True)
                assert_close(got.output, want.output)
                assert_close(got.lse, want.lse)


def masks_by_positions(kernel: Kernel) -> None:
    for order in ORDERS:
        for q_len, k_len in ((9, 9), (5, 8), (8, 5)):
            for alignment in ("upper_left", "lower_right"):
                query, key, value, *_ = drawn(q_len, k_len)
                mask = torch.rand(q_len, k_len, generator=torch.Generator().manual_seed(1)) < 0.8
                options = {
                    "is_causal": True,
                    "causal_alignment": alignment,
                    "attn_mask": mask,
                    "enable_gqa": True,
                    "scale": -0.4,
                }
                want = attention(query, key, value, **options)
                got = kernel(query, key, value, shards(q_len, 3, order), shards(k_len, 2, order), **options)
                assert_close(got.output, want.output)
                assert_close(got.lse, want.lse)


def takes_parts_in_any_order(kernel: Kernel) -> None:
    query, key, value, *_ = drawn()
    rows, columns = shards(9, 3, "zigzag"), shards(9, 4, "striped")
    want = kernel(query, key, value, rows, columns, is_causal=True, enable_gqa=True)
    for turned in (columns[::-1], columns[2:] + columns[:2]):
        got = kernel(query, key, value, rows[::-1], turned, is_causal=True, enable_gqa=True)
        assert_close(got.output, want.output)
        assert_close(got.lse, want.lse)


def adds_up_the_gradients(backward_of: Callable[..., Any]) -> None:
    for q_len, mask in (
        (9, {}),
        (9, {"is_causal": True}),
        (12, {"is_causal": True, "causal_alignment": "lower_right"}),
    ):
        query, key, value, grad_output, grad_lse = drawn(q_len)  # of 12 queries the first ones see nothing
        options: dict[str, Any] = {"enable_gqa": True, "grad_lse": grad_lse, "scale": 0.7, **mask}
        want = backward(query, key, value, grad_output, **options)
        for order in ORDERS:
            for ranks in (1, 2, 12):
                deal = shards(q_len, ranks, order), shards(9, ranks, order)
                got = backward_of(query, key, value, grad_output, *deal, **options)
                for mine, theirs in zip(got[:3], want[:3], strict=True):
                    assert_close(mine, theirs)


FORWARD_LAWS = (is_one_call, masks_by_positions, takes_parts_in_any_order)


def parts_of(tensors: tuple[T, T, T], rows: T, key_shards: Shards, options: dict[str, Any]) -> list[Part]:
    """Attention over each shard, causal within the shard where asked."""
    query, key, value = tensors
    local = {name: x for name, x in options.items() if name in ("is_causal", "causal_alignment", "enable_gqa", "scale")}
    results = [attention(query[:, :, rows], key[:, :, c], value[:, :, c], **local) for c in key_shards]
    return [Part(r.output, r.lse) for r in results if r.lse is not None]


def assembled(
    *tensors: T, shards_: tuple[Shards, Shards], merging: Callable[[list[Part]], Part], **options: Any
) -> Result:
    output, lse = torch.zeros(2, 4, tensors[0].shape[2], 3).double(), torch.zeros(2, 4, tensors[0].shape[2]).double()
    for rows in shards_[0]:
        output[:, :, rows], lse[:, :, rows] = merging(parts_of(tensors, rows, shards_[1], options))
    return Result(output, lse)


def positions_in_the_shard(query: T, key: T, value: T, rows: Shards, columns: Shards, **options: Any) -> Result:
    return assembled(query, key, value, shards_=(rows, columns), merging=merge, **options)


def mean_of_the_parts(query: T, key: T, value: T, rows: Shards, columns: Shards, **options: Any) -> Result:
    def mean(parts: list[Part]) -> Part:
        return Part(sum(p.output for p in parts) / len(parts), torch.stack([p.lse for p in parts]).logsumexp(0))

    return assembled(query, key, value, shards_=(rows, columns), merging=mean, **options)


def merged_without_maximum(query: T, key: T, value: T, rows: Shards, columns: Shards, **options: Any) -> Result:
    def naive(parts: list[Part]) -> Part:
        weights = torch.stack([p.lse.float().exp() for p in parts]).double()
        output = sum(w[..., None] * p.output for w, p in zip(weights, parts, strict=True))
        return Part(output / weights.sum(0)[..., None], weights.sum(0).log())

    return assembled(query, key, value, shards_=(rows, columns), merging=naive, **options)


def last_shard_dropped(query: T, key: T, value: T, rows: Shards, columns: Shards, **options: Any) -> Result:
    return assembled(
        query, key, value, shards_=(rows, columns), merging=lambda parts: merge(parts[:-1] or parts), **options
    )


def rows_in_the_order_of_the_shards(
    query: T, key: T, value: T, rows: Shards, columns: Shards, **options: Any
) -> Result:
    right = context_parallel_attention(query, key, value, rows, columns, **options)
    assert right.lse is not None
    order = torch.cat(list(rows))
    return Result(right.output[:, :, order], right.lse[:, :, order])


def first_part_counts_twice(query: T, key: T, value: T, rows: Shards, columns: Shards, **options: Any) -> Result:
    return assembled(query, key, value, shards_=(rows, columns), merging=lambda p: merge([p[0], *p]), **options)


def with_flowing(change: Callable[[list[Part], Part, T, T | None], list[Part]]) -> Callable[..., Any]:
    """The backward pass with another gradient of the parts."""

    def faulty(*args: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context_parallel, "merge_backward", change)
            return context_parallel_backward(*args, **options)

    return faulty


def lse_of_the_part(parts: list[Part], merged: Part, grad_output: T, grad_lse: T | None) -> list[Part]:
    """The weights of a part are those of its own lse."""
    return [Part(grad_output, torch.zeros_like(p.lse) if grad_lse is None else grad_lse) for p in parts]


def delta_of_the_part(parts: list[Part], merged: Part, grad_output: T, grad_lse: T | None) -> list[Part]:
    """delta is taken with the output of the part."""
    shares = [torch.exp(p.lse - merged.lse) for p in parts]
    more = 0.0 if grad_lse is None else grad_lse
    return [Part(w[..., None] * grad_output, w * more) for w in shares]


def keys_of_the_own_rank(
    query: T, key: T, value: T, grad_output: T, rows: Shards, columns: Shards, **options: Any
) -> Any:
    """Gradients of keys come from the queries of the same rank only."""
    right = context_parallel_backward(query, key, value, grad_output, rows, columns, **options)
    own = torch.zeros_like(right.key)
    for mine in rows:
        only = torch.zeros_like(grad_output)
        only[:, :, mine] = grad_output[:, :, mine]
        own[:, :, mine] = context_parallel_backward(query, key, value, only, rows, columns, **options).key[:, :, mine]
    return right._replace(key=own)


FORWARD_FAULTS = [
    (mean_of_the_parts, is_one_call),
    (merged_without_maximum, is_one_call),
    (last_shard_dropped, is_one_call),
    (first_part_counts_twice, is_one_call),
    (rows_in_the_order_of_the_shards, is_one_call),
    (positions_in_the_shard, masks_by_positions),
    (last_shard_dropped, takes_parts_in_any_order),
    (first_part_counts_twice, takes_parts_in_any_order),
]
BACKWARD_FAULTS = [with_flowing(lse_of_the_part), with_flowing(delta_of_the_part), keys_of_the_own_rank]


test_the_reference_keeps_the_law, test_a_fault_breaks_the_law, test_each_law_finds_a_fault = law_tests(
    (context_parallel_attention,), FORWARD_LAWS, FORWARD_FAULTS
)


def test_gradients_add_up() -> None:
    adds_up_the_gradients(context_parallel_backward)


@pytest.mark.parametrize("fault", BACKWARD_FAULTS, ids=["lse-of-the-part", "delta-of-the-part", "keys-of-the-own-rank"])
def test_faulty_gradients_are_told_apart(fault: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError):
        adds_up_the_gradients(fault)


@given(st.lists(st.integers(0, 4), max_size=11), st.lists(st.integers(0, 4), min_size=1, max_size=7), st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_deal_gives_the_whole(key_ranks: list[int], query_ranks: list[int], is_causal: bool) -> None:
    query, key, value, *_ = drawn(len(query_ranks), len(key_ranks))
    rows, columns = (
        [torch.tensor([j for j, rank in enumerate(deal) if rank == r], dtype=torch.int64) for r in range(5)]
        for deal in (query_ranks, key_ranks)
    )
    got = context_parallel_attention(query, key, value, rows, columns, is_causal=is_causal, enable_gqa=True)
    want = attention(query, key, value, is_causal=is_causal, enable_gqa=True)
    assert_close(got.output, want.output)
    assert_close(got.lse, want.lse)


def test_the_truth_is_that_of_the_whole() -> None:
    query, key, value, *_ = drawn(4, 6)
    true = exact_attention(query.numpy(), key.numpy(), value.numpy(), is_causal=True, enable_gqa=True)
    deal = shards(4, 2, "zigzag"), shards(6, 3, "striped")
    got = context_parallel_attention(query, key, value, *deal, is_causal=True, enable_gqa=True)
    assert_close(got.output, torch.from_numpy(true.output))
    assert_close(got.lse, torch.from_numpy(true.lse))


def test_the_gradient_of_a_merge_is_that_of_autograd() -> None:
    parts = [Part(torch.randn(3, 2).double().requires_grad_(), torch.randn(3).double().requires_grad_()) for _ in "abc"]
    grad_output, grad_lse = torch.randn(3, 2).double(), torch.randn(3).double()
    merged = merge(parts)
    loss = (merged.output * grad_output).sum() + (merged.lse * grad_lse).sum()
    want = torch.autograd.grad(loss, [x for p in parts for x in p])
    got = [x.detach() for p in merge_backward(parts, merged, grad_output, grad_lse) for x in p]
    for mine, autograd in zip(got, want, strict=True):
        assert_close(mine, autograd)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("rows", "columns", "options", "message"),
    [
        ([[0, 1], [1]], [[0], [1, 2]], {}, "query_shards holds position 1 2 times: use each once"),
        ([[0], [1]], [[0], [2]], {}, "key_shards holds position 1 0 times: use each once"),
        ([[0], [1]], [[0, 1], [2, 3]], {}, "key_shards holds position 3: use 0 to 2"),
        ([], [[0, 1, 2]], {}, "query_shards is empty: use one shard or more"),
        ([[0, 1]], [[0, 1, 2]], {"attn_mask": torch.zeros(2, 3)}, "attn_mask is torch.float32: use torch.bool or None"),
    ],
)
def test_bad_input_is_told_in_one_line(
    rows: list[list[int]], columns: list[list[int]], options: dict[str, Any], message: str
) -> None:
    query, key, value, *_ = drawn(2, 3)
    deal = [torch.tensor(x) for x in rows], [torch.tensor(x) for x in columns]
    with pytest.raises(InputError) as caught:
        context_parallel_attention(query, key, value, *deal, enable_gqa=True, **options)
    assert str(caught.value) == message


def test_a_deal_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"^4 positions on 0 ranks: use 0 or more positions, 1 or more ranks$"):
        shards(4, 0)
    with pytest.raises(InputError, match=r"^-1 positions on 2 ranks: use 0 or more"):
        shards(-1, 2)
    assert [len(x) for x in shards(0, 2, "zigzag")] == [0, 0]
    query, key, value, grad_output, _ = drawn()
    deal = shards(9, 2)
    with pytest.raises(InputError, match=r"^4 query heads and 2 key heads: set enable_gqa=True$"):
        context_parallel_attention(query, key, value, deal, deal)
    with pytest.raises(InputError, match=r"^4 query heads and 2 key heads: set enable_gqa=True$"):
        context_parallel_backward(query, key, value, grad_output, deal, deal)
    with pytest.raises(InputError, match=r"^order is 'ring': use one of contiguous, zigzag, striped$"):
        shards(4, 2, "ring")
