"""The exact gradients: against the float64 closed form, 60 digits of mpmath, exact fractions, and ties."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnspec.reference import backward as module
from attnspec.reference.attention import attention
from attnspec.reference.backward import Gradients, mask_backward, sum_readers
from attnspec.reference.backward import backward as closed_form
from attnspec.reference.exact import UndecidedError, precision, round_to
from attnspec.reference.exact import backward as exact_module
from attnspec.reference.exact.backward import ExactGradients, backward
from attnspec.reference.grouped_heads import expand
from attnspec.spec.dtypes import BFLOAT16, FORMATS, Format
from attnspec.spec.errors import InputError

Array = NDArray[np.float64]
HALF_ULP, ULP = 2.0**-53, 2.0**-52
DIGITS = 60
ONES = [[0.0, -np.inf, -np.inf, -np.inf]] * 2  # two rows that see the first of four keys
TIE = [1.0, HALF_ULP]  # with these gradients of the output they give its value a gradient between two numbers
NAMES = ("query", "key", "value", "attn_mask")


# ---------------------------------------------------------------- helpers


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Return normal float64 arrays of a generator with a fixed stream."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.standard_normal(shape) for shape in shapes]


def rows_of(scores: list[list[float]], grads: list[float], values: list[float], **options: Any) -> ExactGradients:
    """Return the gradients of rows with these scores, as a bias over q.k = 0; head_dim and value_dim are 1."""
    query, key = np.zeros((1, 1, len(scores), 1)), np.ones((1, 1, len(values), 1))
    value, grad = (np.array(x).reshape(1, 1, -1, 1) for x in (values, grads))
    return backward(query, key, value, grad, attn_mask=np.array(scores), **options)


@pytest.fixture(params=["balls", "argument"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let balls decide what they can, or leave every entry to the exact argument."""
    if request.param == "argument":
        monkeypatch.setattr(exact_module, "round_ball", lambda ball, fmt: None)


def fraction_of(x: mpmath.mpf) -> Fraction:
    """Return the exact value of an mpmath number."""
    sign, mantissa, exponent, _ = x._mpf_
    magnitude = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude


# ---------------------------------------------------------------- two other evaluations


@dataclass(frozen=True)
class Case:
    """One drawn call: what it does, and the seed of its numbers."""

    seed: int
    kv_heads: int
    kv_batch: int
    dim: int
    spread: float
    scale: float | None
    mask: str | None
    causal: str | None


cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    kv_heads=st.sampled_from([1, 2, 4]),
    kv_batch=st.sampled_from([1, 2]),
    dim=st.sampled_from([1, 3, 4]),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    scale=st.sampled_from([None, 0.0, -0.7, 1.25]),
    mask=st.sampled_from([None, "bool", "bhqk", "1h1k", "q1", "k", "1"]),
    causal=st.sampled_from([None, "upper_left", "lower_right"]),
)


def call_of(case: Case) -> tuple[list[Array], dict[str, Any]]:
    """Return the tensors of a case, query to grad_output, and its options."""
    sizes = {"b": 2, "h": 4, "q": 3, "k": 5, "1": 1}
    keys = (case.kv_batch, case.kv_heads, 5)
    tensors = draw(case.seed, (2, 4, 3, case.dim), (*keys, case.dim), (*keys, 2), (2, 4, 3, 2))
    tensors[0] *= case.spread
    grad_lse, full = draw(case.seed + 1, (2, 4, 3), (2, 4, 3, 5))
    mask: NDArray[Any] | None = None
    if case.mask == "bool":
        mask = full > -0.5
    elif case.mask is not None:
        (mask,) = draw(case.seed + 2, tuple(sizes[letter] for letter in case.mask))
        mask = np.where(mask < -1.5, -np.inf, mask)
    options = {"attn_mask": mask, "is_causal": case.causal is not None, "causal_alignment": case.causal or "upper_left"}
    return tensors, options | {"grad_lse": grad_lse, "scale": case.scale, "enable_gqa": True}


def in_torch(tensors: list[Array], options: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Return the same call with torch tensors."""
    torched = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    return [torch.from_numpy(x) for x in tensors], torched


def absolute_sums(tensors: list[torch.Tensor], options: dict[str, Any]) -> Gradients:
    """Return the sums of the absolute terms that the closed form adds up."""
    query, key, value, grad_output = tensors
    forward = {name: x for name, x in options.items() if name != "grad_lse"}
    weights = attention(query, key, value, **forward).weights
    assert weights is not None
    scale = 1 / math.sqrt(query.shape[-1]) if options["scale"] is None else abs(options["scale"])
    products = grad_output.abs() @ expand(value, 4).abs().transpose(-1, -2)
    scores = weights * (products + (weights * products).sum(-1, keepdim=True) + options["grad_lse"].abs()[..., None])
    return Gradients(
        query=scale * scores @ expand(key, 4).abs(),
        key=sum_readers(scale * scores.transpose(-1, -2) @ query.abs(), key),
        value=sum_readers(weights.transpose(-1, -2) @ grad_output.abs(), value),
        attn_mask=mask_backward(scores, options["attn_mask"]),
    )


def agree(left: ExactGradients, right: Gradients, sizes: Gradients) -> bool:
    """Whether the gradients are the same within 1e-13 of the sums of absolute terms."""
    for name, b, size in zip(NAMES, right, sizes, strict=True):
        a = getattr(left, name)
        if (a is None) != (b is None) or (a is not None and a.shape != b.shape):
            return False
        if a is not None and (abs(a - b.numpy()) > 1e-13 * size.numpy()).any():
            return False
    return True


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(cases)
def test_agrees_with_the_closed_form_in_float64(case: Case) -> None:
    tensors, options = call_of(case)
    torched, torch_options = in_torch(tensors, options)
    exact = backward(*tensors, **options)
    assert agree(exact, closed_form(*torched, **torch_options), absolute_sums(torched, torch_options))


FAULTS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "no delta": ("softmax_backward", lambda w, g, visible, lse: w * (g + lse[..., None])),
    "last writer of a group": ("sum_readers", lambda grad, heads: grad[:, 1::2]),
    "tiled heads": ("sum_readers", lambda grad, heads: grad[:, :2] + grad[:, 2:]),
    "last writer of a bias": ("mask_backward", lambda grad_scores, mask: grad_scores.sum((0, 1))[-1:]),
}


@pytest.mark.parametrize(("part", "fault"), FAULTS.values(), ids=FAULTS)
def test_the_exact_gradients_expose_a_planted_fault(
    part: str, fault: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, options = call_of(Case(0, 2, 2, 4, 1.0, None, "k", None))
    options["attn_mask"] = options["attn_mask"][None]  # (1, k_len)
    torched, torch_options = in_torch(tensors, options)
    exact, sizes = backward(*tensors, **options), absolute_sums(torched, torch_options)
    assert agree(exact, closed_form(*torched, **torch_options), sizes)
    monkeypatch.setattr(module, part, fault)
    assert not agree(exact, closed_form(*torched, **torch_options), sizes)


@pytest.mark.parametrize("name", ["query", "key"])
def test_the_exact_gradients_expose_a_missing_scale(name: str) -> None:
    tensors, options = call_of(Case(1, 2, 2, 4, 1.0, None, None, None))
    torched, torch_options = in_torch(tensors, options)
    gradients = closed_form(*torched, **torch_options)
    unscaled = gradients._replace(**{name: 2 * getattr(gradients, name)})
    assert not agree(backward(*tensors, **options), unscaled, absolute_sums(torched, torch_options))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("scale", [None, -0.7, 40.0])
def test_agrees_with_a_naive_evaluation_to_60_digits(fmt: Format, scale: float | None) -> None:
    query, key, value, grad, bias, lse = draw(3, (4, 3), (5, 3), (5, 2), (4, 2), (4, 5), (4,))
    heads = (x[None, None] for x in (query, key, value, grad))
    result = backward(*heads, grad_lse=lse[None, None], attn_mask=bias, scale=scale, rounded_to=fmt)
    with mpmath.workdps(DIGITS):
        q, k, v, do = (mpmath.matrix(x.tolist()) for x in (query, key, value, grad))
        factor = 1 / mpmath.sqrt(3) if scale is None else mpmath.mpf(scale)
        p = (factor * q * k.T + mpmath.matrix(bias.tolist())).apply(mpmath.exp)
        a, ds = do * v.T, mpmath.matrix(4, 5)
        for i in range(4):
            p[i, :] /= mpmath.fsum(p[i, :])
            delta = mpmath.fdot(p[i, :], a[i, :])
            for j in range(5):
                ds[i, j] = p[i, j] * (a[i, j] - delta + mpmath.mpf(lse[i]))
        expected = factor * ds * k, factor * ds.T * q, p.T * do, ds
        for name, matrix in zip(NAMES, expected, strict=True):
            assert getattr(result, name).ravel().tolist() == [round_to(fraction_of(x), fmt) for x in matrix], name


# ---------------------------------------------------------------- rational weights


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("steps", [2, 16])
def test_uniform_rows_are_rounded_from_exact_fractions(fmt: Format, steps: int) -> None:
    generator = np.random.Generator(np.random.PCG64(4))
    query, key, value, grad, lse = (  # multiples of 1/steps: ties are common
        generator.integers(-3 * steps, 3 * steps, shape) / steps for shape in ((4, 2), (5, 2), (5, 2), (4, 2), (4,))
    )
    keep = generator.random((4, 5)) < 0.7
    keep[1] = False
    query[:] = query[0]  # scale times q.k is cancelled by the bias, so that each row is uniform over what it sees
    bias = np.where(keep, -0.25 * (query @ key.T), -np.inf)
    heads = (x[None, None] for x in (query, key, value, grad))
    result = backward(*heads, grad_lse=lse[None, None], attn_mask=bias, scale=0.25, rounded_to=fmt)

    q, k, v, do, dlse = (np.vectorize(Fraction, otypes=[object])(x) for x in (query, key, value, grad, lse))
    seen = keep.sum(axis=1, keepdims=True)
    p = np.vectorize(lambda see, n: Fraction(int(see), max(int(n), 1)), otypes=[object])(keep, seen)
    a = do @ v.T
    ds = p * (a - (p * a).sum(axis=1, keepdims=True) + dlse[:, None])
    expected = ds @ k / 4, ds.T @ q / 4, p.T @ do, ds
    for name, matrix in zip(NAMES, expected, strict=True):
        assert getattr(result, name).ravel().tolist() == [round_to(x, fmt) for x in matrix.ravel()], name


# ---------------------------------------------------------------- zeros and ties


def test_one_visible_key_gives_exact_zeros_and_the_gradient_itself() -> None:
    query, key, value, grad = draw(5, (1, 1, 3, 3), (1, 1, 3, 3), (1, 1, 3, 2), (1, 1, 3, 2))
    mask = np.where(np.eye(3, dtype=bool), draw(6, (3, 3))[0], -np.inf)
    result = backward(query, key, value, grad, attn_mask=mask)
    assert result.value.tobytes() == grad.tobytes()
    for gradient in (result.query, result.key, result.attn_mask):
        assert gradient is not None
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()  # no -0


def test_equal_values_give_exact_zeros() -> None:
    query, key, grad = draw(7, (1, 1, 4, 3), (1, 1, 5, 3), (1, 1, 4, 2))
    result = backward(query, key, np.full((1, 1, 5, 2), 0.1), grad, attn_mask=np.zeros(5))
    assert [np.count_nonzero(getattr(result, name)) for name in NAMES] == [0, 0, 10, 0]


@pytest.mark.parametrize("scale", [None, 0.3])
def test_a_constant_feature_of_the_keys_cancels_in_the_query(scale: float | None) -> None:
    query, key, value, grad = draw(8, (1, 1, 3, 3), (1, 1, 5, 3), (1, 1, 5, 2), (1, 1, 3, 2))
    key[..., 1] = 0.1
    result = backward(query, key, value, grad, scale=scale)
    assert result.query[..., 1].tolist() == [[[0.0, 0.0, 0.0]]]
    assert np.count_nonzero(result.query[..., [0, 2]]) == 6


def test_a_bias_constant_along_the_keys_has_the_gradient_of_the_lse() -> None:
    query, key, value, grad, lse = draw(9, (1, 1, 3, 3), (1, 1, 5, 3), (1, 1, 5, 2), (1, 1, 3, 2), (1, 1, 3))
    result = backward(query, key, value, grad, grad_lse=lse, attn_mask=np.zeros((3, 1)))
    assert result.attn_mask is not None
    assert result.attn_mask.ravel().tolist() == lse.ravel().tolist()


def test_rows_of_the_same_weights_cancel_exactly() -> None:
    query, key, value, grad = draw(10, (1, 2, 1, 3), (1, 1, 5, 3), (1, 1, 5, 2), (1, 2, 1, 2))
    query[0, 1], grad[0, 1] = query[0, 0], -grad[0, 0]
    result = backward(query, key, value, grad, enable_gqa=True)
    assert np.count_nonzero(result.key) == np.count_nonzero(result.value) == 0
    assert np.count_nonzero(result.query) == 6


def test_complementary_and_proportional_rows_add_up_to_rational_numbers() -> None:
    mirrored = [[0.0, 1.0], [1.0, 0.0]]  # weights (p, 1 - p) and (1 - p, p)
    assert rows_of(mirrored, [1.0, 1.0], [0.0, 0.0]).value.ravel().tolist() == [1.0, 1.0]
    doubled = [[0.0, 1.0, -np.inf, -np.inf], [0.0, 1.0, 0.0, 1.0]]  # every weight of the second row is half as large
    assert rows_of(doubled + ONES, [1.0, -2.0, *TIE], [0.0] * 4).value.ravel()[0] == 1.0


@pytest.mark.parametrize("gap", [60.0, 1e4, 1e5, 1e300])
def test_a_vanishing_weight_decides_a_tie(gap: float) -> None:
    assert rows_of([[0.0, -gap]] * 2, TIE, [0.0, 0.0]).value.ravel()[0] == 1.0
    assert rows_of([[0.0, -gap]] * 2, [1.0, 3 * HALF_ULP], [0.0, 0.0]).value.ravel()[0] == 1 + ULP
    assert rows_of([[0.0], [0.0]], [1.0, 3 * HALF_ULP], [0.0]).value.item() == 1 + 2 * ULP


def test_a_tie_of_the_scores_gradient_is_decided_by_a_vanishing_weight() -> None:
    scores, lse = [[0.0, -1e5]], np.full((1, 1, 1), 1 + 2.0**-8)
    for values, expected in (([0.0, 0.0], 1.0), ([0.0, -2.0], 1 + 2.0**-7), ([0.0, 1.0], 1.0)):
        result = rows_of(scores, [1.0], values, grad_lse=lse, rounded_to=BFLOAT16)
        assert result.attn_mask is not None
        assert result.attn_mask[0, 0] == expected


def test_saturated_gradients_are_rounded_however_small() -> None:
    result = rows_of([[0.0, -600.0]], [1.0], [0.0, 1.0]).attn_mask
    assert result is not None
    with mpmath.workdps(DIGITS):
        small = mpmath.exp(-600) / (1 + mpmath.exp(-600)) ** 2
        assert result.ravel().tolist() == [-float(small), float(small)]


def test_what_the_argument_does_not_reach_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1 / (1 + e) - 1 / (1 + e)^2 - e / (1 + e)^2 = 0, with different denominators, e = exp(-1)
    scores = [[0.0, -1.0, -np.inf, -np.inf], [0.0, -1.0, -1.0, -2.0], [-1.0, 0.0, -1.0, -2.0]]
    monkeypatch.setattr(precision, "PRECISION_CAP", 4096)
    with pytest.raises(UndecidedError, match=r"gradient of value at \(0, 0, 0, 0\): not decided at 4096 bits"):
        rows_of(scores + ONES, [1.0, -1.0, -1.0, *TIE], [0.0] * 4)


# ---------------------------------------------------------------- hidden slots, empty rows, refusals


@pytest.mark.parametrize("stray", [1.0, 1e308, math.nan, math.inf])
def test_hidden_slots_and_empty_rows_have_no_influence(stray: float) -> None:
    query, key, value, grad = draw(11, (1, 1, 3, 3), (1, 1, 4, 3), (1, 1, 4, 2), (1, 1, 3, 2))
    mask = np.array([[True, True, False, True], [False] * 4, [False, True, False, True]])
    lse = np.ones((1, 1, 3))
    expected = backward(query, key, value, grad, grad_lse=lse, attn_mask=mask)
    for x, place in ((query, 1), (key, 2), (value, 2), (grad, 1), (lse, 1)):
        x[0, 0, place] = stray
    result = backward(query, key, value, grad, grad_lse=lse, attn_mask=mask)
    for name in NAMES[:3]:
        assert getattr(result, name).tobytes() == getattr(expected, name).tobytes()
    assert np.count_nonzero(result.query[0, 0, 1]) == np.count_nonzero(result.key[0, 0, 2]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grad_output": np.ones((1, 1, 3, 2))}, "grad_output has shape (1, 1, 3, 2): use (1, 1, 2, 2)"),
        ({"grad_lse": np.ones((1, 1, 3))}, "grad_lse has shape (1, 1, 3): use (1, 1, 2)"),
        ({"grad_output": np.full((1, 1, 2, 2), np.nan)}, "grad_output holds nan at (0, 0, 0, 0)"),
        ({"grad_lse": np.full((1, 1, 2), np.inf)}, "grad_lse holds inf at (0, 0, 0)"),
    ],
)
def test_unusable_input_is_told_in_one_line(changes: dict[str, Any], message: str) -> None:
    query, key, value, grad = draw(12, (1, 1, 2, 3), (1, 1, 3, 3), (1, 1, 3, 2), (1, 1, 2, 2))
    arguments: dict[str, Any] = {"grad_output": grad} | changes
    with pytest.raises(InputError) as caught:
        backward(query, key, value, **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
