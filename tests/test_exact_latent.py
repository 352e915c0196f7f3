"""The exact gradients of latent attention: against the closed form, exact attention's gradients, ties and zeros."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import fmpq
from numpy.typing import NDArray

from attnspec.reference.exact import latent as module
from attnspec.reference.exact.backward import backward
from attnspec.reference.exact.gradient_ties import ZERO, Addend, settle_sum
from attnspec.reference.exact.latent import ExactLatentGradients, latent_attention, latent_backward
from attnspec.reference.exact.scale import Scale
from attnspec.reference.latent import latent_backward as closed_form
from attnspec.spec.dtypes import FLOAT64
from attnspec.spec.errors import InputError

Array = NDArray[np.float64]
HALF_ULP, ULP = 2.0**-53, 2.0**-52
NAMES = ("query", "latent", "key_rope", "w_uk", "w_uv")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"scale": -0.6},
    {"is_causal": True},
    {"is_causal": True, "causal_alignment": "lower_right", "key_lengths": np.array([5, 2])},
    {"key_lengths": np.array([0, 3])},
)


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Return normal float64 arrays of a generator with a fixed stream."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.standard_normal(shape) for shape in shapes]


def call(seed: int = 0) -> tuple[list[Array], Array]:
    """Return query, latent, key_rope, w_uk, w_uv and grad_output, and grad_lse: batch 2, 3 heads, 3 queries."""
    shapes = (2, 3, 3, 6), (2, 5, 4), (2, 5, 2), (3, 4, 4), (3, 2, 4), (2, 3, 3, 2)
    *tensors, grad_lse = draw(seed, *shapes, (2, 3, 3))
    return tensors, grad_lse


def assert_same(left: ExactLatentGradients, right: ExactLatentGradients) -> None:
    __tracebackhide__ = True
    assert all(getattr(left, name).tobytes() == getattr(right, name).tobytes() for name in NAMES)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_agrees_with_the_closed_form_in_float64(options: dict[str, Any]) -> None:
    tensors, grad_lse = call()
    lengths = options.get("key_lengths")
    wide = options | {"key_lengths": None if lengths is None else torch.from_numpy(lengths)}
    for given in (None, grad_lse):
        found = latent_backward(*tensors, grad_lse=given, **options)
        in_torch = None if given is None else torch.from_numpy(given)
        want = closed_form(*map(torch.from_numpy, tensors), grad_lse=in_torch, **wide)
        for name in NAMES:
            np.testing.assert_allclose(getattr(found, name), getattr(want, name).numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("options", OPTIONS[1:4:2], ids=str)
def test_the_exact_argument_says_what_the_balls_say(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, grad_lse = call(1)
    by_balls = latent_backward(*tensors, grad_lse=grad_lse, **options)
    monkeypatch.setattr(module, "round_ball", lambda ball, fmt: None)
    assert_same(latent_backward(*tensors, grad_lse=grad_lse, **options), by_balls)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_matrices_that_pick_elements_give_the_exact_gradients_of_attention(scale: float | None) -> None:
    """One head, whose keys are the first half of the vectors and whose values the second."""
    query, latent, key_rope, grad_output, grad_lse = draw(
        2, (1, 1, 4, 5), (1, 6, 6), (1, 6, 2), (1, 1, 4, 3), (1, 1, 4)
    )
    w_uk, w_uv = np.eye(6)[None, :3], np.eye(6)[None, 3:]
    found = latent_backward(query, latent, key_rope, w_uk, w_uv, grad_output, grad_lse=grad_lse, scale=scale)
    key, value = np.concatenate([latent[:, None, :, :3], key_rope[:, None]], -1), latent[:, None, :, 3:]
    want = backward(query, key, value, grad_output, grad_lse=grad_lse, scale=scale)
    assert (found.query == want.query).all()
    assert (found.latent == np.concatenate([want.key[0, :, :, :3], want.value[0]], -1)).all()
    assert (found.key_rope == want.key[0, :, :, 3:]).all()


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_cache_of_unit_vectors_gives_the_matrices_the_gradients_of_keys_and_values(scale: float | None) -> None:
    """Token j is the j-th unit vector, so that its keys and values are columns of the matrices."""
    query, key_rope, w_uk, w_uv, flow = draw(3, (1, 2, 3, 4), (1, 5, 1), (2, 3, 5), (2, 2, 5), (1, 2, 3, 2))
    found = latent_backward(query, np.eye(5)[None], key_rope, w_uk, w_uv, flow, scale=scale)
    rope = np.broadcast_to(key_rope[:, None], (1, 2, 5, 1))
    key, value = np.concatenate([w_uk.swapaxes(1, 2)[None], rope], -1), w_uv.swapaxes(1, 2)[None]
    want = backward(query, key, value, flow, scale=scale)
    assert (found.w_uk == want.key[0, :, :, :3].swapaxes(1, 2)).all()
    assert (found.w_uv == want.value[0].swapaxes(1, 2)).all()
    assert (found.query == want.query).all()


# ---------------------------------------------------------------- zeros and ties


def test_absent_tokens_have_no_gradient_and_reach_none() -> None:
    tensors, grad_lse = call(4)
    lengths = np.array([3, 0])
    found = latent_backward(*tensors, grad_lse=grad_lse, key_lengths=lengths)
    tensors[1][0, 3:], tensors[2][0, 3:] = 1e300, -1e300
    assert_same(latent_backward(*tensors, grad_lse=grad_lse, key_lengths=lengths), found)
    zeros = found.query[1], found.latent[0, 3:], found.latent[1], found.key_rope[0, 3:], found.key_rope[1]
    assert all(x.tobytes() == np.zeros_like(x).tobytes() for x in zeros)  # no -0
    query, latent, key_rope, *matrices, flow = tensors
    alone = latent_backward(query[:1], latent[:1, :3], key_rope[:1, :3], *matrices, flow[:1], grad_lse=grad_lse[:1])
    assert (alone.w_uk == found.w_uk).all()
    assert (alone.latent == found.latent[:1, :3]).all()
    forward = latent_attention(*tensors[:5], key_lengths=lengths)
    short = latent_attention(query[:1], latent[:1, :3], key_rope[:1, :3], *matrices)
    assert (forward.output[:1] == short.output).all()
    assert (forward.lse[1] == -math.inf).all()


def test_one_token_gets_what_flows_back_and_nothing_through_its_score() -> None:
    query, latent, key_rope, w_uk, w_uv, flow = draw(
        5, (1, 1, 1, 3), (1, 1, 2), (1, 1, 1), (1, 2, 2), (1, 1, 2), (1, 1, 1, 1)
    )
    found = latent_backward(query, latent, key_rope, w_uk, w_uv, flow)
    assert found.latent.ravel().tolist() == (flow.item() * w_uv.ravel()).tolist()
    assert found.w_uv.ravel().tolist() == (flow.item() * latent.ravel()).tolist()
    for gradient in (found.query, found.key_rope, found.w_uk):
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()


@pytest.mark.parametrize("gap", [0.0, 60.0, 1e5, 1e300])
def test_a_vanishing_weight_decides_a_tie_of_the_vector_of_a_token(gap: float) -> None:
    """The scores are those of the rotated part, so that the vector has a gradient by the weights alone."""

    def of_token(grads: list[float]) -> float:
        query = np.broadcast_to([0.0, 1.0], (1, 1, 2, 2))
        key_rope = np.array([0.0, -gap]).reshape(1, 2, 1)[:, : 2 if gap else 1]
        latent, ones = np.zeros_like(key_rope), np.ones((1, 1, 1))
        flow = np.array(grads).reshape(1, 1, 2, 1)
        return float(latent_backward(query, latent, key_rope, ones, ones, flow, scale=1.0).latent[0, 0, 0])

    assert of_token([1.0, HALF_ULP]) == 1.0
    assert of_token([1.0, 3 * HALF_ULP]) == (1 + ULP if gap else 1 + 2 * ULP)


def addend(number: float) -> Addend:
    """What a row of one key adds: a number."""
    return Addend({ZERO: [0]}, {0: fmpq(*number.as_integer_ratio())}, {}, [fmpq(0)])


def test_sums_with_factors_of_their_own_are_added_before_they_are_rounded() -> None:
    root, one, less = Scale(Fraction(1), 3), Scale(Fraction(1)), Scale(Fraction(-1), 3)

    def settled(*parts: tuple[float, Scale]) -> float:
        return settle_sum([([addend(x)], factor) for x, factor in parts], 3, FLOAT64, 128, "it")

    assert settled((1.0, one), (HALF_ULP, Scale(Fraction(2)))) == 1 + ULP
    assert settled((1.0, one), (HALF_ULP, one)) == 1.0
    assert settled((3.0, root)) == math.sqrt(3)
    assert settled((1.0, one), (HALF_ULP, root)) == 1.0  # less than half of a step
    assert settled((1.0, one), (2 * HALF_ULP, root)) == 1 + ULP  # more
    assert settled((0.1, root), (0.1, less), (0.75, one)) == 0.75


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("place", "shape", "told"),
    [
        (5, (2, 3, 3, 1), r"grad_output has shape \(2, 3, 3, 1\)"),
        (3, (2, 4, 4), "do not fit"),
        (2, (2, 4, 2), r"key_rope has shape \(2, 4, 2\)"),
    ],
)
def test_bad_input_is_told(place: int, shape: tuple[int, ...], told: str) -> None:
    tensors, grad_lse = call()
    tensors[place] = np.zeros(shape)
    with pytest.raises(InputError, match=told):
        latent_backward(*tensors, grad_lse=grad_lse)


def test_nan_and_lengths_beyond_the_cache_are_told() -> None:
    tensors, grad_lse = call()
    with pytest.raises(InputError, match="key_lengths holds 6 at 1"):
        latent_backward(*tensors, key_lengths=np.array([5, 6]))
    with pytest.raises(InputError, match=r"grad_lse \(2, 3, 2\)"):
        latent_backward(*tensors, grad_lse=grad_lse[..., :2])
    tensors[5][0, 0, 0, 0] = math.nan
    with pytest.raises(InputError, match="grad_output holds a NaN"):
        latent_backward(*tensors)
