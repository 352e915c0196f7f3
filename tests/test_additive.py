"""Additive attention: values by hand, masks, planted faults, and the exact oracle."""

from __future__ import annotations

import math
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnspec.reference.additive import additive_attention, additive_scores
from attnspec.reference.exact.additive import additive_attention as exact
from attnspec.spec.dtypes import FLOAT32
from attnspec.spec.errors import InputError

CLOSE = {"rtol": 1e-13, "atol": 1e-14}
SHAPES = {"query": (2, 2, 4, 3), "key": (2, 2, 5, 6), "value": (2, 2, 5, 2), "w_q": (7, 3), "w_k": (7, 6), "v_a": (7,)}

Inputs = dict[str, torch.Tensor]


def inputs(**changes: torch.Tensor) -> Inputs:
    """Return normal float64 arguments of a fixed stream, some of them changed."""
    source = torch.Generator().manual_seed(0)
    drawn = {name: torch.randn(shape, dtype=torch.float64, generator=source) for name, shape in SHAPES.items()}
    return drawn | changes


def arrays(given: Inputs) -> dict[str, NDArray[Any]]:
    """Return the numbers of the arguments."""
    return {name: tensor.numpy() for name, tensor in given.items()}


def one_query(arguments: list[float], values: list[float], v_a: float = 1.0, **options: Any) -> tuple[float, float]:
    """Return the oracle's (output, lse) of one query 0 whose keys give these arguments of one tanh."""
    key, value = (np.array(x, dtype=np.float64).reshape(1, 1, -1, 1) for x in (arguments, values))
    one = np.ones((1, 1))
    result = exact(np.zeros((1, 1, 1, 1)), key, value, one, one, np.array([v_a]), **options)
    return result.output.item(), result.lse.item()


# ---------------------------------------------------------------- the reference


def test_a_score_by_hand() -> None:
    query, key = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[0.5], [-1.0]]]])
    w_q, w_k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0], [-2.0]])
    scores = additive_scores(query, key, w_q, w_k, torch.tensor([3.0, -5.0]))
    by_hand = [3 * math.tanh(1 + 1) - 5 * math.tanh(2 - 1), 3 * math.tanh(1 - 2) - 5 * math.tanh(2 + 2)]
    assert scores.ravel().tolist() == pytest.approx(by_hand, rel=1e-15)


def test_the_output_is_the_mean_of_values_under_the_softmax() -> None:
    given = inputs()
    result = additive_attention(**given)
    scores = additive_scores(*(given[name] for name in ("query", "key", "w_q", "w_k", "v_a")))
    torch.testing.assert_close(result.weights, torch.softmax(scores, -1), **CLOSE)
    torch.testing.assert_close(result.lse, torch.logsumexp(scores, -1), **CLOSE)
    torch.testing.assert_close(result.output, torch.softmax(scores, -1) @ given["value"], **CLOSE)


def test_scores_stay_within_the_sum_of_v_a() -> None:
    given = inputs()
    given["query"] = 1e6 * given["query"]
    scores = additive_scores(*(given[name] for name in ("query", "key", "w_q", "w_k", "v_a")))
    assert scores.abs().max() <= given["v_a"].abs().sum()


def test_masks_hide_add_and_combine() -> None:
    given, mask = inputs(), torch.tensor([[1, 1, 0, 1, 1], [0] * 5, [0, 1, 1, 1, 0], [1] * 5]).bool()
    hidden = additive_attention(**given, attn_mask=mask)
    additive = additive_attention(**given, attn_mask=torch.zeros(4, 5).double().masked_fill(~mask, -torch.inf))
    assert hidden.output.equal(additive.output)
    assert hidden.lse is not None
    assert (hidden.output[:, :, 1] == 0).all()
    assert (hidden.lse[:, :, 1] == -torch.inf).all()
    both = additive_attention(**given, attn_mask=mask, is_causal=True)
    triangle = torch.ones(4, 5).tril().bool()
    assert both.output.equal(additive_attention(**given, attn_mask=mask & triangle).output)
    bias = torch.arange(20.0).reshape(4, 5).double()
    plain, moved = additive_attention(**given), additive_attention(**given, attn_mask=bias)
    assert plain.weights is not None
    shifted = torch.softmax(plain.weights.log() + bias, -1)
    torch.testing.assert_close(moved.weights, shifted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.ones(4, 3).double()}, "query has 2 dimensions: use 4"),
        ({"v_a": torch.ones(7)}, "v_a is torch.float32 and query is torch.float64"),
        ({"w_q": torch.ones(7, 6).double()}, r"w_q is \(7, 6\): use \(7, 3\)"),
        ({"w_k": torch.ones(6, 6).double()}, r"w_k is \(6, 6\): use \(7, 6\)"),
        ({"key": torch.ones(2, 1, 5, 6).double()}, "differ in batch or heads"),
        ({"value": torch.ones(2, 2, 4, 2).double()}, r"value is torch.float64 \(2, 2, 4, 2\)"),
    ],
)
def test_what_does_not_fit_is_refused(changes: Inputs, message: str) -> None:
    with pytest.raises(InputError, match=message):
        additive_attention(**inputs(**changes))


# ---------------------------------------------------------------- the exact oracle


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_agrees_with_the_exact_oracle(is_causal: bool, added: bool) -> None:
    given, source = inputs(), torch.Generator().manual_seed(1)
    mask = torch.rand(2, 2, 4, 5, generator=source) > 0.3
    mask[0, 0, 2] = False
    if added:
        mask = torch.randn(2, 2, 4, 5, dtype=torch.float64, generator=source).masked_fill(~mask, -torch.inf)
    expected = exact(**arrays(given), attn_mask=mask.numpy(), is_causal=is_causal)
    found = additive_attention(**given, attn_mask=mask, is_causal=is_causal)
    assert found.lse is not None
    np.testing.assert_allclose(found.output.numpy(), expected.output, **CLOSE)
    np.testing.assert_allclose(found.lse.numpy(), expected.lse, **CLOSE)
    assert (expected.output[0, 0, 2].tolist(), expected.lse[0, 0, 2]) == ([0.0, 0.0], -math.inf)


@pytest.mark.parametrize("fault", ["scaled", "tanh first", "no query", "sigmoid"])
def test_the_oracle_finds_a_planted_fault(fault: str) -> None:
    given = inputs()
    from_query = (given["query"] @ given["w_q"].T)[..., :, None, :]
    from_key = (given["key"] @ given["w_k"].T)[..., None, :, :]
    hidden = {
        "scaled": torch.tanh(from_query + from_key) / math.sqrt(7),
        "tanh first": torch.tanh(from_query) + torch.tanh(from_key),
        "no query": torch.tanh(from_key).expand(2, 2, 4, 5, 7),
        "sigmoid": torch.sigmoid(from_query + from_key),
    }[fault]
    output = torch.softmax(hidden @ given["v_a"], -1) @ given["value"]
    assert np.abs(output.numpy() - exact(**arrays(given)).output).max() > 1e-3


def test_the_oracle_agrees_with_40_digits_of_mpmath() -> None:
    arguments, values = [0.3, -1.7, 2.5, 2.5], [1.0, -2.0, 7.0, 5.0]
    with mpmath.workdps(40):
        weights = [mpmath.exp(mpmath.mpf(3) * mpmath.tanh(x)) for x in arguments]
        mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        expected = float(mean), float(mpmath.log(sum(weights)))
    assert one_query(arguments, values, v_a=3.0) == expected


def test_equal_scores_give_the_mean_with_ties_to_even() -> None:
    ulp = 2.0**-52
    assert one_query([0.7, 0.7], [1.0, 1 + ulp])[0] == 1.0
    assert one_query([0.7, 0.7], [1 + ulp, 1 + 2 * ulp])[0] == 1 + 2 * ulp
    assert one_query([0.0, 0.0], [0.0, 0.0]) == (0.0, math.log(2))
    assert one_query([0.0], [0.1]) == (0.1, 0.0)


def test_scores_that_are_equal_by_the_oddness_of_tanh_are_one_group() -> None:
    one = np.array([[1.0], [1.0]])
    key = np.array([[0.3, -0.3], [0.9, -0.9]]).reshape(1, 1, 2, 2)  # both scores are tanh(x) + tanh(-x) = 0
    value = np.array([1.0, 1 + 2.0**-52]).reshape(1, 1, 2, 1)
    result = exact(np.zeros((1, 1, 1, 1)), key, value, one, np.eye(2), np.ones(2))
    assert (result.output.item(), result.lse.item()) == (1.0, math.log(2))


def test_what_a_mask_adds_parts_equal_scores_and_joins_none() -> None:
    halves, inf = np.array([[0.5, 1.5]]), math.inf
    assert one_query([0.0, 0.0], [0.0, 0.0], attn_mask=np.array([[0.25, -inf]])) == (0.0, 0.25)
    assert one_query([0.0, 0.0], [7.0, 7.0], attn_mask=np.full((1, 2), -inf)) == (0.0, -inf)
    output, lse = one_query([0.7, 0.7], [0.0, 1.0], attn_mask=halves)
    assert output == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-15)  # the scores differ by 1
    assert lse == pytest.approx(math.tanh(0.7) + 1.5 + math.log1p(math.exp(-1)), rel=1e-15)


@pytest.mark.parametrize("size", [80.0, 1e5, 1e9])
def test_a_vanishing_weight_decides_the_direction_of_a_tie(size: float) -> None:
    tie = 1 + 2.0**-52
    for other, expected in ((5.0, tie), (-5.0, 1.0)):
        output, _ = one_query([1.0, 1.0, -1.0], [1.0, tie, other], v_a=size)
        assert output == expected


def test_the_oracle_rounds_once_to_float32() -> None:
    wide, narrow = one_query([0.3, -1.7], [1.0, 2.0]), one_query([0.3, -1.7], [1.0, 2.0], rounded_to=FLOAT32)
    assert narrow == tuple(np.float32(wide).tolist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": np.full((2, 2, 4, 3), np.nan)}, "query holds a NaN or an infinity"),
        ({"attn_mask": np.zeros((4, 5), dtype=np.int64)}, "attn_mask is int64: use bool or float16"),
        ({"attn_mask": np.full((4, 5), np.inf)}, r"attn_mask holds a NaN or \+inf"),
        ({"attn_mask": np.ones((4, 4), dtype=np.bool_)}, r"attn_mask has shape \(4, 4\)"),
        ({"w_q": np.ones((7, 6))}, r"w_q \(7, 6\) and w_k \(7, 6\)"),
        ({"value": np.ones((2, 2, 4, 2))}, "use one batch, one heads, one k_len"),
        ({"v_a": np.ones(7, dtype=np.int64)}, "v_a is int64"),
    ],
)
def test_the_oracle_refuses_what_does_not_fit(changes: dict[str, NDArray[Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        exact(**arrays(inputs()) | changes)
