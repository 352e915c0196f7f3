"""The figures behind 1/sqrt(d_k): variances of q.k, and the softmax's derivative against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from attnspec.reference.scaling import jacobian_norm, score_variance, softmax_jacobian
from attnspec.spec.errors import InputError

PAIRS = 20000


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal float64 numbers of a fixed stream."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_variance_by_hand() -> None:
    query, key = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [3.0, 5.0]])
    assert score_variance(query, key).item() == 9.0  # products 3 and 9, mean 6
    assert score_variance(query, key, scale=0.5).item() == 2.25


@pytest.mark.parametrize("d_k", [16, 64, 256])
def test_the_variance_is_d_k_and_1_after_scaling(d_k: int) -> None:
    query, key = normal(PAIRS, d_k, seed=1), normal(PAIRS, d_k, seed=2)
    error = 5 * math.sqrt(2 * (1 + 3 / d_k) / PAIRS)  # the kurtosis of q.k is 3 + 6 / d_k
    assert score_variance(query, key).item() == pytest.approx(d_k, rel=error)
    assert score_variance(query, key, scale=1 / math.sqrt(d_k)).item() == pytest.approx(1, rel=error)


def test_the_jacobian_of_two_equal_scores_by_hand() -> None:
    assert softmax_jacobian(torch.zeros(2)).tolist() == [[0.25, -0.25], [-0.25, 0.25]]
    assert jacobian_norm(torch.zeros(2)).item() == 0.5


def test_the_jacobian_agrees_with_autograd() -> None:
    scores = normal(3, 7)
    expected = torch.stack([
        torch.autograd.functional.jacobian(lambda row: torch.softmax(row, -1), row) for row in scores
    ])  # fmt: skip
    torch.testing.assert_close(softmax_jacobian(scores), expected, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(jacobian_norm(scores), torch.linalg.matrix_norm(expected), rtol=1e-13, atol=0)


def test_a_saturated_softmax_has_no_gradient() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0])
    norms = [jacobian_norm(factor * scores).item() for factor in (1, 10, 100, 1000)]
    assert norms == sorted(norms, reverse=True)
    assert norms[1] < 1e-4
    assert norms[3] == 0.0


def test_scaling_keeps_every_gradient_alive() -> None:
    products = normal(400, 1, 128, seed=3) @ normal(400, 128, 32, seed=4)  # (rows, 1, k_len)
    vanished = [(jacobian_norm(scale * products) < 0.01).double().mean() for scale in (1.0, 1 / math.sqrt(128))]
    assert vanished[0] > 0.25
    assert vanished[1] == 0


def test_unusable_input_is_told() -> None:
    with pytest.raises(InputError, match=r"query \(2, 3\) and key \(2, 4\)"):
        score_variance(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(InputError, match="use one shape"):
        score_variance(torch.ones(0, 3), torch.ones(0, 3))
    with pytest.raises(InputError, match="scores has no dimension"):
        softmax_jacobian(torch.tensor(1.0))
