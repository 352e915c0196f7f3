"""Packed sequences: by hand, as a loop over their members, their gradients, and the faults that each law finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import law_tests

from attnspec.reference.attention import attention
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.packed import alone, packed_attention, packed_backward, spans
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
Kernel = Callable[..., Result]


def boundaries(lengths: list[int]) -> torch.Tensor:
    """Return cu_seqlens of lengths."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def drawn(total_q: int, total_k: int, q_heads: int = 4, kv_heads: int = 2, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return packed query, key and value, float64, head_dim 5 and value_dim 3."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (total_q, q_heads, 5), (total_k, kv_heads, 5), (total_k, kv_heads, 3)
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query, key, value


def assert_close(got: torch.Tensor | None, want: torch.Tensor | None) -> None:
    __tracebackhide__ = True
    torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


# ---------------------------------------------------------------- by hand


def test_members_of_three_none_and_two_tokens_average_their_own_values() -> None:
    value = torch.tensor([1.0, 2.0, 6.0, 10.0, 20.0]).reshape(5, 1, 1)
    zeros, cu_seqlens = torch.zeros(5, 1, 1), boundaries([3, 0, 2])
    result = packed_attention(zeros, zeros, value, cu_seqlens, cu_seqlens)
    assert result.lse is not None
    assert result.output.flatten().tolist() == pytest.approx([3.0, 3.0, 3.0, 15.0, 15.0])
    assert result.lse.flatten().tolist() == pytest.approx([math.log(3)] * 3 + [math.log(2)] * 2)
    causal = packed_attention(zeros, zeros, value, cu_seqlens, cu_seqlens, is_causal=True)
    assert causal.output.flatten().tolist() == pytest.approx([1.0, 1.5, 3.0, 10.0, 15.0])


def test_the_two_corners_of_a_member() -> None:
    query, key, value = torch.zeros(2, 1, 1), torch.zeros(4, 1, 1), torch.tensor([9.0, 1.0, 2.0, 6.0]).reshape(4, 1, 1)
    call = partial(packed_attention, query, key, value, boundaries([0, 2]), boundaries([1, 3]), is_causal=True)
    assert call(causal_alignment="upper_left").output.flatten().tolist() == [1.0, 1.5]
    assert call(causal_alignment="lower_right").output.flatten().tolist() == [1.5, 3.0]


# ---------------------------------------------------------------- laws

PACKS = {  # lengths of queries and of keys
    "ragged": ([3, 1, 5], [4, 6, 5]),
    "empty first and last": ([0, 4, 0], [0, 4, 0]),
    "no keys": ([2, 3, 1], [3, 0, 2]),
    "no queries": ([2, 0, 1], [1, 4, 2]),
    "all empty": ([0, 0], [0, 0]),
    "taller than wide": ([5, 2], [2, 1]),
    "one": ([4], [7]),
}


def is_a_loop_over_its_members(kernel: Kernel, pack: str = "ragged", **options: Any) -> None:
    q_lengths, k_lengths = PACKS[pack]
    query, key, value = drawn(sum(q_lengths), sum(k_lengths))
    result = kernel(query, key, value, boundaries(q_lengths), boundaries(k_lengths), **options)
    assert result.output.shape == (len(query), 4, 3)
    rows = zip(query.split(q_lengths), key.split(k_lengths), value.split(k_lengths), strict=True)
    for queries, (q, k, v) in zip(spans(boundaries(q_lengths), len(query)), rows, strict=True):
        whole = slice(None)
        want = attention(alone(q, whole), alone(k, whole), alone(v, whole), enable_gqa=True, **options)
        assert want.lse is not None
        assert result.lse is not None
        assert_close(result.output[queries].transpose(0, 1), want.output[0])
        assert_close(result.lse[:, queries], want.lse[0])


def is_causal_in_each_member(kernel: Kernel) -> None:
    for alignment in ("upper_left", "lower_right"):
        is_a_loop_over_its_members(kernel, is_causal=True, causal_alignment=alignment)


def has_windows_in_each_member(kernel: Kernel) -> None:
    for alignment in ("upper_left", "lower_right"):
        is_a_loop_over_its_members(kernel, window_size=(1, 0), causal_alignment=alignment)


def takes_members_without_keys(kernel: Kernel) -> None:
    is_a_loop_over_its_members(kernel, "no keys")


def does_not_show_what_is_no_member_of_it(kernel: Kernel) -> None:
    query, key, value = drawn(9, 9)
    cu_seqlens = boundaries([3, 4])
    clean = kernel(query, key, value, cu_seqlens, cu_seqlens)
    for junk in (math.nan, math.inf, 1e6):
        dirty_key, dirty_value, dirty_query = key.clone(), value.clone(), query.clone()
        for tensor in (dirty_key, dirty_value, dirty_query):
            tensor[:3] = tensor[7:] = junk
        result = kernel(dirty_query, dirty_key, dirty_value, cu_seqlens, cu_seqlens)
        assert torch.equal(result.output[3:7], clean.output[3:7])


def reads_no_key_beyond_a_length(kernel: Kernel) -> None:
    query, key, value = drawn(9, 12)
    cu_q, cu_k, lengths = boundaries([3, 2, 4]), boundaries([4, 3, 5]), torch.tensor([2, 0, 5], dtype=torch.int32)
    there = torch.tensor([0, 1, *range(7, 12)])
    for alignment in ("upper_left", "lower_right"):
        options: dict[str, Any] = {"is_causal": True, "causal_alignment": alignment}
        want = packed_attention(query, key[there], value[there], cu_q, boundaries([2, 0, 5]), **options)
        dirty_key, dirty_value = key.clone(), value.clone()
        dirty_key[2:7] = dirty_value[2:7] = math.nan
        got = kernel(query, dirty_key, dirty_value, cu_q, cu_k, key_lengths=lengths, **options)
        assert_close(got.output, want.output)
        assert_close(got.lse, want.lse)


LAWS = (
    reads_no_key_beyond_a_length,
    is_a_loop_over_its_members,
    is_causal_in_each_member,
    has_windows_in_each_member,
    takes_members_without_keys,
    does_not_show_what_is_no_member_of_it,
)


def one_token_of_the_next(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, **options: Any
) -> Result:
    """The last key of each member but the last is that of the next one."""
    result = packed_attention(query, key, value, cu_q, cu_k, **options)
    for queries, keys in zip(spans(cu_q, len(query)), spans(cu_k, len(key)), strict=True):
        leaking = slice(keys.start, min(keys.stop + 1, len(key)))
        one = attention(alone(query, queries), alone(key, leaking), alone(value, leaking), enable_gqa=True, **options)
        result.output[queries] = one.output[0].transpose(0, 1)
    return result


def masked_as_a_whole(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, **options: Any
) -> Result:
    """One call over the whole pack with a mask: NaN of others leaks, and the diagonal is that of the pack."""
    rows, columns = torch.arange(len(query)), torch.arange(len(key))
    member = torch.searchsorted(cu_q[1:].long(), rows, right=True)[:, None]
    mask = member == torch.searchsorted(cu_k[1:].long(), columns, right=True)
    whole = slice(None)
    result = attention(
        alone(query, whole), alone(key, whole), alone(value, whole), attn_mask=mask, enable_gqa=True, **options
    )
    assert result.lse is not None
    return Result(result.output[0].transpose(0, 1), result.lse[0])


def keys_by_the_boundaries_of_queries(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_q: torch.Tensor, cu_k: torch.Tensor, **options: Any
) -> Result:
    return packed_attention(query, key, value, cu_q, cu_q.clamp(max=len(key)), **options)


def other_corner(*tensors: torch.Tensor, **options: Any) -> Result:
    given = options.pop("causal_alignment", "upper_left")
    corner = "upper_left" if given == "lower_right" else "lower_right"
    return packed_attention(*tensors, causal_alignment=corner, **options)


def empty_member_keeps_what_stood_there(*tensors: torch.Tensor, **options: Any) -> Result:
    result = packed_attention(*tensors, **options)
    result.output[result.output.abs().sum(-1) == 0] = 0.5
    return result


def length_of_the_first(*tensors: torch.Tensor, key_lengths: torch.Tensor, **options: Any) -> Result:
    return packed_attention(*tensors, key_lengths=key_lengths[:1].expand_as(key_lengths), **options)


def lengths_from_the_end(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor, key_lengths: torch.Tensor, **options: Any
) -> Result:
    """The last keys of a member exist, not its first."""
    shift = [
        place.stop - place.start - n for place, n in zip(spans(rest[1], len(k)), key_lengths.tolist(), strict=True)
    ]
    order = torch.cat(
        [torch.arange(p.start, p.stop).roll(-s) for p, s in zip(spans(rest[1], len(k)), shift, strict=True)]
    )
    return packed_attention(q, k[order], v[order], *rest, key_lengths=key_lengths, **options)


def window_left_and_right_swapped(*tensors: torch.Tensor, **options: Any) -> Result:
    window = options.pop("window_size", None)
    return packed_attention(*tensors, window_size=window and window[::-1], **options)


FAULTS = [
    (window_left_and_right_swapped, has_windows_in_each_member),
    (length_of_the_first, reads_no_key_beyond_a_length),
    (lengths_from_the_end, reads_no_key_beyond_a_length),
    (one_token_of_the_next, is_a_loop_over_its_members),
    (keys_by_the_boundaries_of_queries, is_a_loop_over_its_members),
    (other_corner, is_causal_in_each_member),
    (masked_as_a_whole, is_causal_in_each_member),
    (empty_member_keeps_what_stood_there, takes_members_without_keys),
    (masked_as_a_whole, does_not_show_what_is_no_member_of_it),
    (one_token_of_the_next, does_not_show_what_is_no_member_of_it),
]


test_the_reference_keeps_the_law, test_a_fault_breaks_the_law, test_each_law_finds_a_fault = law_tests(
    (packed_attention,), LAWS, FAULTS
)


@pytest.mark.parametrize("alignment", ["upper_left", "lower_right"])
@pytest.mark.parametrize("pack", PACKS)
def test_any_pack_is_a_loop(pack: str, alignment: str) -> None:
    is_a_loop_over_its_members(packed_attention, pack, is_causal=True, causal_alignment=alignment, scale=-0.7)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5), st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_pack_is_attention_under_the_mask_of_its_members(lengths: list[tuple[int, int]], is_causal: bool) -> None:
    q_lengths, k_lengths = [q for q, _ in lengths], [k for _, k in lengths]
    cu_q, cu_k = boundaries(q_lengths), boundaries(k_lengths)
    query, key, value = drawn(sum(q_lengths), sum(k_lengths), seed=1)
    mask = torch.block_diag(*(torch.ones(q, k) for q, k in lengths)).bool().reshape(len(query), len(key))
    if is_causal:
        mask = torch.block_diag(*(torch.ones(q, k).tril() for q, k in lengths)).bool().reshape(len(query), len(key))
    whole = slice(None)
    want = attention(alone(query, whole), alone(key, whole), alone(value, whole), attn_mask=mask, enable_gqa=True)
    got = packed_attention(query, key, value, cu_q, cu_k, is_causal=is_causal)
    assert want.lse is not None
    assert_close(got.output.transpose(0, 1), want.output[0])
    assert_close(got.lse, want.lse[0])


def test_the_truth_of_a_pack_is_that_of_its_members() -> None:
    query, key, value = drawn(5, 6, q_heads=2)
    got = packed_attention(query, key, value, boundaries([2, 3]), boundaries([5, 1]), is_causal=True)
    assert got.lse is not None
    for queries, keys in ((slice(0, 2), slice(0, 5)), (slice(2, 5), slice(5, 6))):
        one = (alone(query, queries).numpy(), alone(key, keys).numpy(), alone(value, keys).numpy())
        true = exact_attention(*one, is_causal=True)
        assert_close(got.output[queries].transpose(0, 1), torch.from_numpy(true.output[0]))
        assert_close(got.lse[:, queries], torch.from_numpy(true.lse[0]))


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("alignment", ["none", "upper_left", "lower_right"])
def test_gradients_are_those_of_autograd(pack: str, alignment: str) -> None:
    q_lengths, k_lengths = PACKS[pack]
    given_ = [x.requires_grad_() for x in drawn(sum(q_lengths) + 1, sum(k_lengths) + 1)]
    cu = boundaries(q_lengths), boundaries(k_lengths)
    grad_output, grad_lse = torch.randn(len(given_[0]), 4, 3).double(), torch.randn(4, len(given_[0])).double()
    options: dict[str, Any] = {"scale": 0.7, "key_lengths": torch.tensor(k_lengths).sub(1).clamp(min=0)}
    if alignment != "none":
        options |= {"is_causal": True, "causal_alignment": alignment}
    result = packed_attention(*given_, *cu, **options)
    assert result.lse is not None
    seen = result.lse.detach() != -math.inf
    loss = (result.output * grad_output).sum() + (result.lse[seen] * grad_lse[seen]).sum()
    want = torch.autograd.grad(loss, given_, allow_unused=True, materialize_grads=True)
    got = packed_backward(*given_, grad_output, *cu, grad_lse=grad_lse, **options)
    for mine, autograd in zip(got[:3], want, strict=True):
        assert_close(mine.detach(), autograd)


def test_a_gradient_does_not_cross_a_boundary() -> None:
    query, key, value = drawn(6, 6)
    grad_output = torch.zeros(6, 4, 3)
    grad_output[:2] = 1.0
    grads = packed_backward(query, key, value, grad_output, boundaries([2, 4]), boundaries([3, 3]))
    assert all((grad[3:] == 0).all() for grad in (grads.query, grads.key, grads.value))
    assert all((grad[:2] != 0).any() for grad in (grads.query, grads.key, grads.value))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("cu_q", "cu_k", "message"),
    [
        ([0, 4, 3, 5], [0, 2, 4, 6], "cu_seqlens_q falls from 4 to 3 at sequence 1: use boundaries that never fall"),
        ([1, 5], [0, 6], "cu_seqlens_q starts with 1: use 0"),
        ([0, 2, 5], [0, 6, 7], "cu_seqlens_k ends with 7: use 6 at most, the number of tokens"),
        ([0, 2, 5], [0, 6], "cu_seqlens_q has 2 sequences and cu_seqlens_k 1: use the same number"),
        ([], [0, 6], "cu_seqlens_q has shape (0,): use (batch + 1,)"),
        ([[0, 5]], [0, 6], "cu_seqlens_q has shape (1, 2): use (batch + 1,)"),
        ([0.0, 5.0], [0, 6], "cu_seqlens_q is torch.float32: use torch.int32 or torch.int64"),
    ],
)
def test_bad_boundaries_are_told_in_one_line(cu_q: list[int], cu_k: list[int], message: str) -> None:
    dtype = None if cu_q else torch.int64
    with pytest.raises(InputError) as caught:
        packed_attention(*drawn(5, 6), torch.tensor(cu_q, dtype=dtype), torch.tensor(cu_k))
    assert str(caught.value) == message


def test_tensors_that_do_not_fit_are_told_in_one_line() -> None:
    query, key, value = drawn(5, 6)
    cu = boundaries([5]), boundaries([6])
    with pytest.raises(InputError, match=r"^query has 4 dimensions: use \(total, heads, dim\)$"):
        packed_attention(query[None], key, value, *cu)
    with pytest.raises(InputError, match=r"differ in tokens or heads$"):
        packed_attention(query, key, value[:5], *cu)
    with pytest.raises(InputError, match=r"^3 query heads cannot share 2 key and value heads"):
        packed_attention(query[:, :3], key, value, *cu)
    for lengths, message in (([7], "7 for batch 0: use 0 to 6"), ([-1], "-1 for batch 0: use 0 to 6")):
        with pytest.raises(InputError, match=f"^key_lengths has {message}$"):
            packed_attention(query, key, value, *cu, key_lengths=torch.tensor(lengths))
    two = boundaries([2, 3]), boundaries([2, 4])
    with pytest.raises(InputError, match=r"^key_lengths has 5 for sequence 1: use 0 to 4$"):
        packed_attention(query, key, value, *two, key_lengths=torch.tensor([1, 5]))
    with pytest.raises(InputError, match=r"^grad_output has shape \(5, 4, 2\): use \(5, 4, 3\)$"):
        packed_backward(query, key, value, torch.zeros(5, 4, 2), *cu)
    with pytest.raises(InputError, match=r"^grad_lse has shape \(5, 4\): use \(4, 5\)$"):
        packed_backward(query, key, value, torch.zeros(5, 4, 3), *cu, grad_lse=torch.zeros(5, 4))
