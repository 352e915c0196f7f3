"""The exact gradients: against the float64 closed form, 60 digits of mpmath and exact fractions."""

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
from attnspec.reference.alibi import distance
from attnspec.reference.attention import attention
from attnspec.reference.backward import Gradients, mask_backward, sum_readers
from attnspec.reference.backward import backward as closed_form
from attnspec.reference.exact import backward as exact_module
from attnspec.reference.exact import round_to
from attnspec.reference.exact.backward import ExactGradients, backward
from attnspec.reference.grouped_heads import expand
from attnspec.spec.alibi import ALIBI_FORMS, SLOPE_SHAPES
from attnspec.spec.dtypes import FORMATS, Format
from attnspec.spec.errors import InputError
from attnspec.spec.problem import CAUSAL_ALIGNMENTS

Array = NDArray[np.float64]
DIGITS = 60
NAMES = ("query", "key", "value", "attn_mask")  # of calls without sinks and slopes


# ---------------------------------------------------------------- helpers


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Array]:
    """Return normal float64 arrays of a generator with a fixed stream."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return [generator.standard_normal(shape) for shape in shapes]


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
    alibi: tuple[str, str, str] | None = None  # form, corner, shape of the slopes


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
    alibi=st.none() | st.tuples(*map(st.sampled_from, (ALIBI_FORMS, CAUSAL_ALIGNMENTS, SLOPE_SHAPES))),
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
    causal = case.causal or "upper_left"
    options = {"attn_mask": mask, "is_causal": case.causal is not None, "causal_alignment": causal}
    if case.alibi is not None:
        form, corner, shape = case.alibi
        (slopes,) = draw(case.seed + 3, tuple(sizes[letter] for letter in shape))
        options |= {"alibi_slopes": slopes, "alibi_form": form, "alibi_alignment": corner}
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
    slopes = None
    if "alibi_slopes" in options:
        far = distance(3, 5, form=options["alibi_form"], alignment=options["alibi_alignment"])
        slopes = (scores * far.abs()).sum((2, 3)).sum_to_size(options["alibi_slopes"].shape)
    return Gradients(
        query=scale * scores @ expand(key, 4).abs(),
        key=sum_readers(scale * scores.transpose(-1, -2) @ query.abs(), key),
        value=sum_readers(weights.transpose(-1, -2) @ grad_output.abs(), value),
        attn_mask=mask_backward(scores, options["attn_mask"]),
        alibi_slopes=slopes,
    )


def agree(left: ExactGradients, right: Gradients, sizes: Gradients) -> bool:
    """Whether the gradients are the same within 1e-13 of the sums of absolute terms."""
    for name in (*NAMES, "alibi_slopes"):
        a, b, size = (getattr(x, name) for x in (left, right, sizes))
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


# ---------------------------------------------------------------- hidden slots, empty rows, refusals


@pytest.mark.parametrize("stray", [1.0, 1e308, math.nan, math.inf])
def test_hidden_slots_and_empty_rows_have_no_influence(stray: float) -> None:
    query, key, value, grad = draw(11, (1, 1, 3, 3), (1, 1, 4, 3), (1, 1, 4, 2), (1, 1, 3, 2))
    mask = np.array([[True, True, False, True], [False] * 4, [False, True, False, True]])
    lse = np.ones((1, 1, 3))
    expected = backward(query, key, value, grad, grad_lse=lse, attn_mask=mask)
    query[0, 0, 1] = key[0, 0, 2] = value[0, 0, 2] = grad[0, 0, 1] = lse[0, 0, 1] = stray
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
