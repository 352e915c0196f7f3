"""Latent attention: by hand, expanded and absorbed, its rotation, its gradients, and the faults of each law."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import law_tests

from attnspec.reference.attention import attention
from attnspec.reference.exact.latent import latent_attention as exact_latent_attention
from attnspec.reference.latent import (
    absorbed_attention,
    cache_elements,
    expand,
    latent_attention,
    latent_backward,
    rotate_last,
)
from attnspec.reference.rope import frequencies, rotate
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError

TOLERANCE = 1e-12  # for values of about 1 in float64
HEADS, NOPE, ROPE, RANK, VALUE = 3, 5, 4, 7, 2
Kernel = Callable[..., Result]
T = torch.Tensor


def drawn(q_len: int = 4, k_len: int = 6, seed: int = 0) -> list[T]:
    """Return query, latent, key_rope, w_uk and w_uv, batch 2."""
    generator = torch.Generator().manual_seed(seed)
    cache = (2, k_len, RANK), (2, k_len, ROPE)
    shapes = (2, HEADS, q_len, NOPE + ROPE), *cache, (HEADS, NOPE, RANK), (HEADS, VALUE, RANK)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def assert_close(got: T | None, want: T | None) -> None:
    __tracebackhide__ = True
    torch.testing.assert_close(got, want, rtol=TOLERANCE, atol=TOLERANCE)


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize("form", [latent_attention, absorbed_attention])
def test_two_tokens_and_two_heads_by_hand(form: Kernel) -> None:
    """Head 0: keys [3c, kr], values 2c; head 1: keys [c, kr], values 5c."""
    query = torch.tensor([[[1.0, 1.0]], [[2.0, 0.0]]])[None]
    latent, key_rope = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[0.0], [-2.0]]])
    w_uk, w_uv = torch.tensor([3.0, 1.0]).reshape(2, 1, 1), torch.tensor([2.0, 5.0]).reshape(2, 1, 1)
    result = form(query, latent, key_rope, w_uk, w_uv, scale=1.0)
    assert result.lse is not None
    e, e2 = math.e, math.exp(2)
    assert result.output.flatten().tolist() == pytest.approx([2 * e / (1 + e), 5 * e2 / (1 + e2)])
    assert result.lse.flatten().tolist() == pytest.approx([math.log(1 + e), math.log(1 + e2)])


def test_the_cache_of_deepseek_v2() -> None:
    assert cache_elements(512, 64) == 576
    _, latent, key_rope, *_ = drawn()
    assert latent[0, 0].numel() + key_rope[0, 0].numel() == cache_elements(RANK, ROPE)


# ---------------------------------------------------------------- laws


def is_attention_over_expanded_keys(kernel: Kernel) -> None:
    """Keys and values are made here by loops over heads and tokens."""
    query, latent, key_rope, w_uk, w_uv = drawn()
    key, value = torch.zeros(2, HEADS, 6, NOPE + ROPE).double(), torch.zeros(2, HEADS, 6, VALUE).double()
    for b in range(2):
        for h in range(HEADS):
            for j in range(6):
                key[b, h, j] = torch.cat([w_uk[h] @ latent[b, j], key_rope[b, j]])
                value[b, h, j] = w_uv[h] @ latent[b, j]
    lengths = torch.tensor([6, 3])
    for options in (
        {},
        {"is_causal": True, "causal_alignment": "lower_right"},
        {"key_lengths": lengths},
        {"scale": -0.3},
    ):
        want, got = attention(query, key, value, **options), kernel(query, latent, key_rope, w_uk, w_uv, **options)
        assert_close(got.output, want.output)
        assert_close(got.lse, want.lse)


def takes_the_scale_of_the_query(kernel: Kernel) -> None:
    tensors = drawn()
    assert_close(kernel(*tensors).output, kernel(*tensors, scale=1 / math.sqrt(NOPE + ROPE)).output)


def does_not_show_absent_tokens(kernel: Kernel) -> None:
    query, latent, key_rope, w_uk, w_uv = drawn()
    lengths = torch.tensor([6, 3])
    clean = kernel(query, latent, key_rope, w_uk, w_uv, key_lengths=lengths)
    latent[1, 3:], key_rope[1, 3:] = math.nan, math.inf
    assert torch.equal(kernel(query, latent, key_rope, w_uk, w_uv, key_lengths=lengths).output, clean.output)


def reads_a_rotated_cache_from_any_position(kernel: Kernel) -> None:
    """Decoding with keys that were rotated when they were stored, against one call over the sequence."""
    query, latent, key_rope, w_uk, w_uv = drawn(6, 6)
    inv_freq, positions = frequencies(ROPE), torch.arange(6)
    stored = rotate(key_rope[:, None], positions, inv_freq, "interleaved")[:, 0]
    whole = kernel(rotate_last(query, ROPE, positions, inv_freq), latent, stored, w_uk, w_uv, is_causal=True)
    shifted = rotate(key_rope[:, None], positions + 11, inv_freq, "interleaved")[:, 0]
    for t in range(6):
        step = rotate_last(query[:, :, t : t + 1], ROPE, torch.tensor([t + 11]), inv_freq)
        got = kernel(step, latent[:, : t + 1], shifted[:, : t + 1], w_uk, w_uv)
        assert_close(got.output[:, :, 0], whole.output[:, :, t])


LAWS = (is_attention_over_expanded_keys, takes_the_scale_of_the_query, does_not_show_absent_tokens)
LAWS += (reads_a_rotated_cache_from_any_position,)


def scale_of_what_is_multiplied(*tensors: T, **options: Any) -> Result:
    options.setdefault("scale", (RANK + ROPE) ** -0.5)
    return absorbed_attention(*tensors, **options)


def scale_of_the_part_not_rotated(*tensors: T, **options: Any) -> Result:
    options.setdefault("scale", NOPE**-0.5)
    return latent_attention(*tensors, **options)


def matrices_of_head_0(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    return latent_attention(query, latent, key_rope, w_uk, w_uv[:1].expand_as(w_uv), **options)


def keys_of_head_0(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    return absorbed_attention(query, latent, key_rope, w_uk[:1].expand_as(w_uk), w_uv, **options)


def rotated_part_dropped(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    return latent_attention(query, latent, key_rope * 0, w_uk, w_uv, **options)


def rotated_part_first(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    return latent_attention(query.roll(NOPE, dims=-1), latent, key_rope, w_uk, w_uv, **options)


def values_of_another_token(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    right = absorbed_attention(query, latent, key_rope, w_uk, w_uv, **options)
    assert right.weights is not None
    return Result(right.weights @ (latent.roll(1, dims=1)[:, None] @ w_uv.transpose(-1, -2)), right.lse, right.weights)


def absent_values_times_0(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    right = latent_attention(query, latent, key_rope, w_uk, w_uv, **options)
    assert right.weights is not None
    return Result(right.weights @ expand(latent, key_rope, w_uk, w_uv)[1], right.lse)


def cache_rotated_again(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    """What is stored is rotated once more when it is read."""
    again = rotate(key_rope[:, None], torch.arange(key_rope.shape[1]), frequencies(ROPE), "interleaved")[:, 0]
    return latent_attention(query, latent, again, w_uk, w_uv, **options)


def cache_turned_by_its_length(query: T, latent: T, key_rope: T, w_uk: T, w_uv: T, **options: Any) -> Result:
    """The cache changes with the position that it is read from."""
    length = torch.full((key_rope.shape[1],), key_rope.shape[1])
    turned = rotate(key_rope[:, None], length, frequencies(ROPE), "interleaved")[:, 0]
    return latent_attention(query, latent, turned, w_uk, w_uv, **options)


FAULTS = [
    *(
        (fault, is_attention_over_expanded_keys)
        for fault in (
            scale_of_what_is_multiplied,
            scale_of_the_part_not_rotated,
            matrices_of_head_0,
            keys_of_head_0,
            rotated_part_dropped,
            rotated_part_first,
            values_of_another_token,
            cache_rotated_again,
        )
    ),
    (scale_of_what_is_multiplied, takes_the_scale_of_the_query),
    (scale_of_the_part_not_rotated, takes_the_scale_of_the_query),
    (absent_values_times_0, does_not_show_absent_tokens),
    (cache_turned_by_its_length, reads_a_rotated_cache_from_any_position),
]


test_the_reference_keeps_the_law, test_a_fault_breaks_the_law, test_each_law_finds_a_fault = law_tests(
    (
        latent_attention,
        absorbed_attention,
    ),
    LAWS,
    FAULTS,
)


@pytest.mark.parametrize("seed", range(5))
def test_absorbed_is_expanded(seed: int) -> None:
    tensors = drawn(seed=seed)
    expanded, absorbed = latent_attention(*tensors, is_causal=True), absorbed_attention(*tensors, is_causal=True)
    for mine, other in zip(absorbed, expanded, strict=True):
        assert_close(mine, other)


def test_a_rotation_before_the_expansion_cannot_be_absorbed() -> None:
    """Why the position has a part of its own: rotating W^UK c is not W^UK times one rotated vector of the cache."""
    query, latent, key_rope, w_uk, w_uv = drawn(6, 6)
    inv_freq, positions = frequencies(4), torch.arange(6)
    key, value = expand(latent, key_rope, w_uk, w_uv)
    coupled = attention(query, rotate(key, positions, inv_freq), value)
    rotated_cache = rotate(latent[:, None], positions, inv_freq)[:, 0]
    absorbed = absorbed_attention(query, rotated_cache, key_rope, w_uk, w_uv)
    assert (coupled.output - absorbed.output).abs().max() > 0.1


# ---------------------------------------------------------------- truth and gradients


@pytest.mark.parametrize("options", [{}, {"is_causal": True, "causal_alignment": "lower_right"}, {"scale": -0.5}])
@pytest.mark.parametrize("form", [latent_attention, absorbed_attention])
def test_the_truth_of_exact_products(form: Kernel, options: dict[str, Any]) -> None:
    for q_len, k_len in ((2, 4), (4, 2)):
        tensors = drawn(q_len, k_len)
        true = exact_latent_attention(*(x.numpy() for x in tensors), **options)
        got = form(*tensors, **options)
        assert_close(got.output, torch.from_numpy(true.output))
        assert_close(got.lse, torch.from_numpy(true.lse))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", [latent_attention, absorbed_attention])
def test_gradients_are_those_of_autograd(form: Kernel, causal: bool) -> None:
    given = [x.requires_grad_() for x in drawn()]
    options: dict[str, Any] = {}
    if causal:
        options = {
            "is_causal": True,
            "causal_alignment": "lower_right",
            "key_lengths": torch.tensor([6, 4]),
            "scale": 0.6,
        }
    result = form(*given, **options)
    assert result.lse is not None
    grad_output, grad_lse = torch.randn(2, HEADS, 4, VALUE).double(), torch.randn(2, HEADS, 4).double()
    want = torch.autograd.grad((result.output * grad_output).sum() + (result.lse * grad_lse).sum(), given)
    got = latent_backward(*given, grad_output, grad_lse=grad_lse, **options)
    for mine, autograd in zip(got, want, strict=True):
        assert_close(mine.detach(), autograd)


def test_absent_tokens_reach_no_gradient() -> None:
    query, latent, key_rope, w_uk, w_uv = drawn()
    latent[1, 3:], key_rope[1, 3:] = math.nan, math.nan
    grads = latent_backward(
        query, latent, key_rope, w_uk, w_uv, torch.ones(2, HEADS, 4, VALUE), key_lengths=torch.tensor([6, 3])
    )
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads.latent[1, 3:] == 0).all()
    assert (grads.key_rope[1, 3:] == 0).all()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("place", "shape", "message"),
    [
        (0, (2, HEADS, 4, 8), "w_uk has shape (3, 5, 7): use (heads, nope_dim, kv_rank) = (3, 4, 7)"),
        (3, (1, NOPE, RANK), "w_uk has shape (1, 5, 7): use (heads, nope_dim, kv_rank) = (3, 5, 7)"),
        (4, (HEADS, VALUE, 6), "w_uv has shape (3, 2, 6): use (3, value_dim, 7)"),
        (1, (1, 6, RANK), "latent (1, 6, 7) and key_rope (2, 6, 4): use (2, k_len, kv_rank) and (2, k_len, rope_dim)"),
        (2, (2, 5, ROPE), "latent (2, 6, 7) and key_rope (2, 5, 4): use (2, k_len, kv_rank) and (2, k_len, rope_dim)"),
        (1, (2, 1, 6, RANK), "latent is torch.float32 (2, 1, 6, 7): use a floating dtype, 3 dimensions"),
    ],
)
def test_bad_input_is_told_in_one_line(place: int, shape: tuple[int, ...], message: str) -> None:
    tensors = drawn()
    tensors[place] = torch.zeros(shape)
    for form in (latent_attention, absorbed_attention):
        with pytest.raises(InputError) as caught:
            form(*tensors)
        assert str(caught.value) == message
    with pytest.raises(InputError):
        exact_latent_attention(*(x.numpy() for x in tensors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": math.nan}, "scale is nan: use a finite number, or None for 1/sqrt(head_dim)"),
        ({"scale": "0.5"}, "scale is '0.5': use a finite number, or None for 1/sqrt(head_dim)"),
        ({"grad_output": torch.zeros(2, HEADS, 4, VALUE + 1)}, "grad_output has shape (2, 3, 4, 3): use (2, 3, 4, 2)"),
        (
            {"grad_output": torch.zeros(2, HEADS, 4, VALUE, dtype=torch.int32)},
            "grad_output is torch.int32: use a floating dtype",
        ),
    ],
)
def test_bad_input_of_the_backward_is_told_in_one_line(changes: dict[str, Any], message: str) -> None:
    arguments = {"grad_output": torch.zeros(2, HEADS, 4, VALUE)} | changes
    with pytest.raises(InputError) as caught:
        latent_backward(*drawn(), **arguments)
    assert str(caught.value) == message
    if "scale" in changes:
        with pytest.raises(InputError, match="use a finite number"):
            absorbed_attention(*drawn(), **changes)


def test_a_rotated_part_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"^rope_dim 4 of 9 elements and 3 pairs: use rope_dim / 2 pairs$"):
        rotate_last(drawn()[0], ROPE, torch.arange(4), frequencies(6))
    for rope_dim in (0, 10):
        with pytest.raises(InputError, match=f"^rope_dim {rope_dim} of 9 elements and"):
            rotate_last(drawn()[0], rope_dim, torch.arange(4), frequencies(10)[: rope_dim // 2])
