"""Softcap in the spec, the reference and the exact oracle: by hand, by autograd, by mpmath, and against each other."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

from attnspec.golden.inputs import make_call
from attnspec.golden.regenerate import truth
from attnspec.reference import softcap
from attnspec.reference.attention import answer, attention
from attnspec.reference.backward import gradients
from attnspec.reference.exact import attention as exact
from attnspec.reference.exact.backward import backward as exact_backward
from attnspec.reference.exact.capped import capped_scores
from attnspec.reference.exact.scale import scale_of
from attnspec.reference.flash import flash_attention, flash_backward
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

CALLS = [
    Problem.parse(f"b=2/hq=4/hkv=2/q={q}/k={k}/d=6/dtype=float64/grad=lse/softcap={cap}/scores=4{more}")
    for (q, k), cap, more in product(
        ((5, 9), (9, 5)),
        ("1.5", "30", "0.01"),
        ("", "/causal=lower_right", "/mask=float.qk.random", "/mask=bool.bhqk.empty_rows", "/window=2.1/scale=-0.7"),
    )
]


def test_a_cap_by_hand() -> None:
    """2 tanh(1 / 2) = 0.924..., and the slope there is 1 - tanh(1 / 2)^2 = 0.786..."""
    scores = torch.tensor([0.0, 1.0, -1.0, 1e6], dtype=torch.float64)
    assert softcap.apply(scores, 2.0).tolist() == pytest.approx([0.0, 0.9242343145200195, -0.9242343145200195, 2.0])
    assert softcap.slope(scores, 2.0).tolist() == pytest.approx([1.0, 0.7864477329659274, 0.7864477329659274, 0.0])
    for nothing in (0.0, None):
        assert softcap.apply(scores, nothing) is scores
        assert softcap.slope(scores, nothing).tolist() == [1.0] * 4


def test_the_cap_is_on_the_scaled_score_and_before_the_bias() -> None:
    """q.k = 8, scale 1/2, cap 2: y = 2 tanh 2 = 1.928; the other key has score 0 and a bias of 5, above the cap."""
    query, key = torch.tensor([[[[8.0]]]]), torch.tensor([[[[1.0], [0.0]]]])
    value, bias = torch.tensor([[[[1.0], [0.0]]]]), torch.tensor([[0.0, 5.0]])
    found = attention(query, key, value, attn_mask=bias, scale=0.5, softcap=2.0)
    capped = 2 * math.tanh(2.0)
    assert float(found.output) == pytest.approx(math.exp(capped) / (math.exp(capped) + math.exp(5.0)))
    assert found.lse is not None
    assert float(found.lse) == pytest.approx(math.log(math.exp(capped) + math.exp(5.0)))


def test_what_is_hidden_stays_hidden() -> None:
    query = torch.zeros(1, 1, 1, 2)
    keep = torch.tensor([[True, False]])
    found = attention(query, torch.zeros(1, 1, 2, 2), torch.tensor([[[[1.0], [9.0]]]]), attn_mask=keep, softcap=0.5)
    assert float(found.output) == 1.0


@pytest.mark.parametrize("problem", CALLS, ids=str)
def test_reference_tiles_and_exact_oracle_agree(problem: Problem) -> None:
    call = make_call(problem)
    true = {name: torch.from_numpy(x) for name, x in truth(call, problem.corner).items()}
    found, back = answer(call, problem.corner), gradients(call, problem.corner)
    options: dict[str, Any] = call.options() | {"causal_alignment": problem.corner, "tile": (4, 3)}
    tiled = flash_attention(call.query, call.key, call.value, **options)
    assert tiled.lse is not None
    assert call.grad_output is not None
    tiled_back = flash_backward(
        call.query, call.key, call.value, tiled.output, tiled.lse, call.grad_output, grad_lse=call.grad_lse, **options
    )
    for result, gradient in ((found, back), (tiled, tiled_back)):
        torch.testing.assert_close(result.output, true["output"], rtol=0, atol=1e-13)
        torch.testing.assert_close(result.lse, true["lse"], rtol=1e-13, atol=1e-13)
        for name in ("query", "key", "value", "attn_mask"):
            if f"grad_{name}" in true:
                torch.testing.assert_close(getattr(gradient, name), true[f"grad_{name}"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("problem", CALLS[::4], ids=str)
def test_gradients_are_those_of_autograd(problem: Problem) -> None:
    call = make_call(problem)
    leaves = {name: getattr(call, name).clone().requires_grad_() for name in ("query", "key", "value")}
    found = answer(call.but(**leaves), problem.corner)
    assert found.lse is not None
    assert call.grad_lse is not None
    seeing = found.lse.isfinite()
    loss = (found.output * call.grad_output).sum() + (found.lse[seeing] * call.grad_lse[seeing]).sum()
    back = gradients(call, problem.corner)
    for gradient, name in zip(torch.autograd.grad(loss, list(leaves.values())), leaves, strict=True):
        torch.testing.assert_close(getattr(back, name), gradient.nan_to_num(0.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cap", [1.5, 50.0, 2.0**-20, 2.0**40])
def test_the_exact_oracle_is_correctly_rounded(cap: float) -> None:
    """Two keys against 60 digits of mpmath: output and lse are the nearest float64 numbers."""
    scores = [3.25, -1.5]
    key = np.array(scores).reshape(1, 1, 2, 1)
    value = np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    found = exact(np.ones((1, 1, 1, 1)), key, value, scale=1.0, softcap=cap)
    with mpmath.workdps(60):
        capped = [mpmath.mpf(cap) * mpmath.tanh(mpmath.mpf(s) / mpmath.mpf(cap)) for s in scores]
        weights = [mpmath.exp(y) for y in capped]
        assert found.output.item() == float(weights[0] / mpmath.fsum(weights))
        assert found.lse.item() == float(mpmath.log(mpmath.fsum(weights)))


def test_equal_scores_are_settled_exactly() -> None:
    """Three equal keys: the mean of 1, 2 and 4, rounded once, and log 3 more than the capped score."""
    ones = np.ones((1, 1, 3, 1))
    value = np.array([1.0, 2.0, 4.0]).reshape(1, 1, 3, 1)
    assert exact(np.ones((1, 1, 1, 1)), ones, value, softcap=2.0).output.item() == 7 / 3
    alone = exact(np.zeros((1, 1, 1, 1)), ones[:, :, :1], value[:, :, :1], softcap=2.0)
    assert (alone.output.item(), alone.lse.item()) == (1.0, 0.0)


def test_a_key_alone_gives_its_query_the_gradient_of_the_lse_alone() -> None:
    """dq = scale * dlse * (1 - tanh^2) * k with one key; s = 1, c = 2, k = 1, dlse = 3."""
    one = np.ones((1, 1, 1, 1))
    back = exact_backward(one, one, one, one, grad_lse=3.0 * one[..., 0], scale=1.0, softcap=2.0)
    assert back.query.item() == pytest.approx(3 * (1 - math.tanh(0.5) ** 2), rel=1e-15)
    assert back.value.item() == 1.0


def test_capped_scores_tell_rational_ones_apart() -> None:
    found = capped_scores(np.array([[1.0]]), np.array([[0.0], [2.0]]), np.array([[0.5, 0.5]]), scale_of(None, 1), 2.0)
    assert [found.is_rational(score) for score in found.rows[0]] == [True, False]
    assert float(found.rational(found.rows[0][0])) == 0.5
    assert found.largest(found.rows[0]) == found.rows[0][1]
    assert float(found.slopes(found.rows[0])[1].mid()) == pytest.approx(1 - math.tanh(1.0) ** 2)


@pytest.mark.parametrize("wrong", [-1.0, -1e-300, math.inf, math.nan])
def test_an_impossible_cap_is_refused_in_one_line(wrong: float) -> None:
    x = torch.ones(1, 1, 4, 4)
    for call in (attention, flash_attention):
        with pytest.raises(InputError, match=r"softcap is .*: use a number of 0 or more"):
            call(x, x, x, softcap=wrong)
    with pytest.raises(InputError, match="softcap is"):
        exact(x.numpy(), x.numpy(), x.numpy(), softcap=wrong)
    with pytest.raises(InputError, match="softcap is"):
        Problem(q_len=1, k_len=1, head_dim=1, softcap=wrong)


def test_a_cap_of_0_is_none() -> None:
    assert Problem.parse("q=1/k=1/d=1/softcap=0") == Problem.parse("q=1/k=1/d=1")
    assert "softcap" in Problem.parse("q=1/k=1/d=1/softcap=30").features()
