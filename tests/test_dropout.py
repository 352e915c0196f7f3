"""Dropout on the weights: hand-computed values, gradients through the same mask, and the statistics of the draws."""

from __future__ import annotations

import math

import pytest
import torch

from attnspec.reference.dropout import apply, keep_mask
from attnspec.spec.errors import InputError

SHAPE = (4, 4, 25, 25)  # (batch, heads, q_len, k_len): 10 000 weights
SIGMAS = 5


def generator(seed: int) -> torch.Generator:
    """Return a generator with a fixed stream."""
    return torch.Generator().manual_seed(seed)


def weights(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Return softmax weights."""
    return torch.softmax(torch.randn(shape, dtype=torch.float64, generator=generator(seed)), -1)


def test_kept_weights_are_divided_by_the_chance_to_be_kept() -> None:
    given = torch.tensor([0.125, 0.25, 0.625])
    keep = torch.tensor([True, False, True])
    assert apply(given, keep, 0.75).tolist() == [0.5, 0.0, 2.5]
    assert apply(given, keep, 0.5).tolist() == [0.25, 0.0, 1.25]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_p_0_returns_the_same_bits(dtype: torch.dtype) -> None:
    given = weights().to(dtype)
    dropped = apply(given, keep_mask(SHAPE, 0.0, generator(1)), 0.0)
    assert dropped.dtype == dtype
    assert dropped.view(torch.uint8).equal(given.view(torch.uint8))


def test_p_1_drops_all_with_finite_gradients() -> None:
    given = weights().requires_grad_()
    keep = keep_mask(SHAPE, 1.0, generator(1))
    dropped = apply(given, keep, 1.0)
    dropped.sum().backward()
    assert not keep.any()
    assert dropped.count_nonzero() == 0
    assert given.grad is not None
    assert given.grad.equal(torch.zeros(SHAPE, dtype=torch.float64))


def test_the_backward_pass_uses_the_same_mask_and_factor() -> None:
    given, grad = weights().requires_grad_(), weights(7)
    keep = keep_mask(SHAPE, 0.25, generator(2))
    apply(given, keep, 0.25).backward(grad)
    assert given.grad is not None
    torch.testing.assert_close(given.grad, torch.where(keep, grad / 0.75, 0.0), rtol=1e-15, atol=0)


def test_a_seed_names_its_mask() -> None:
    assert keep_mask(SHAPE, 0.5, generator(3)).equal(keep_mask(SHAPE, 0.5, generator(3)))
    assert not keep_mask(SHAPE, 0.5, generator(3)).equal(keep_mask(SHAPE, 0.5, generator(4)))


def test_two_calls_in_a_row_draw_two_masks() -> None:
    source = generator(5)
    assert not keep_mask(SHAPE, 0.5, source).equal(keep_mask(SHAPE, 0.5, source))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_dropped_weights_is_p(p: float) -> None:
    dropped = (~keep_mask((64, 8, 32, 32), p, generator(6))).double()  # 524 288 weights
    for axes in ((0, 1, 2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)):  # whole, batch, head, row, key
        share = dropped.mean(axes)
        count = dropped.numel() / share.numel()
        assert ((share - p).abs() <= SIGMAS * math.sqrt(p * (1 - p) / count)).all()


def test_neighbours_are_dropped_independently() -> None:
    dropped = (~keep_mask((64, 8, 32, 32), 0.3, generator(8))).double() - 0.3
    for axis in range(4):
        product = (dropped * dropped.roll(1, axis)).mean()
        assert abs(product) <= SIGMAS * 0.3 * 0.7 / math.sqrt(dropped.numel())


def test_the_mean_over_many_masks_is_the_weight() -> None:
    given, p, draws, source = weights(shape=(1, 2, 3, 5)), 0.4, 4000, generator(9)
    total = sum(apply(given, keep_mask(given.shape, p, source), p) for _ in range(draws))
    error = (total / draws - given) / (given * math.sqrt(p / (1 - p) / draws))  # in standard errors
    assert error.abs().max() <= SIGMAS


def test_the_mean_finds_a_factor_that_is_missing() -> None:
    given, p, draws, source = weights(shape=(1, 2, 3, 5)), 0.4, 4000, generator(9)
    total = sum(apply(given, keep_mask(given.shape, p, source), p) * (1 - p) for _ in range(draws))
    error = (total / draws - given) / (given * math.sqrt(p / (1 - p) / draws))
    assert error.abs().min() > SIGMAS


@pytest.mark.parametrize("p", [-1e-9, 1.0000001, math.nan, math.inf, -math.inf])
def test_no_probability_is_refused(p: float) -> None:
    with pytest.raises(InputError, match="use a probability from 0 to 1"):
        keep_mask((2, 2), p)
    with pytest.raises(InputError, match="use a probability from 0 to 1"):
        apply(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool), p)


@pytest.mark.parametrize("keep", [torch.ones(2, 3), torch.ones(3, dtype=torch.bool)])
def test_another_mask_is_refused(keep: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"keep is .*: use bool \(2, 3\)"):
        apply(torch.ones(2, 3), keep, 0.5)
