"""The gradient of the query over quantised keys and values: the reference by hand and by autograd, and its budget,
whose pass is the gradient and whose bounds are what errors do to it."""

from __future__ import annotations

import math
import runpy
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms import quantised_gradient
from attnspec.conformance.forms.hold import FORMS, hold_case
from attnspec.conformance.forms.propagation import Bound, propagated
from attnspec.conformance.forms.quantised_gradient import product_roundoff, query_bound, query_pass
from attnspec.conformance.row_errors import CONFIDENCE
from attnspec.golden.forms import problem_of
from attnspec.golden.store import load_form
from attnspec.reference.backward import backward
from attnspec.reference.quantised import absmax_scale, quantise, quantised_attention, quantised_backward
from attnspec.spec.dtypes import BFLOAT16, FLOAT16, FLOAT32, Format
from attnspec.spec.errors import InputError

Tensors = dict[str, torch.Tensor]
QUANTISED = runpy.run_path(str(Path(__file__).parent / "honest" / "forms" / "quantised.py"))["target"]
GRAIN = {"tensor": (0, 1, 2, 3), "head": (0, 2, 3), "channel": (0, 2), "token": (3,), "head of a batch": (2, 3)}
HEADS, ROWS, KEYS, DIM, VALUE = 2, 3, 4, 3, 2
SCALE = -0.7
ONE = torch.ones(HEADS, 1, 1).double()


# ---------------------------------------------------------------- the reference


def test_two_keys_by_hand() -> None:
    """Keys 0 and 1, values -64 and 63.5: dq = p_1 p_2 (dp_2 - dp_1) + p_2 dlse, with dp = 2 v."""
    key = torch.tensor([0, 4], dtype=torch.int8).reshape(1, 1, 2, 1)
    value = torch.tensor([-128, 127], dtype=torch.int8).reshape(1, 1, 2, 1)
    one = torch.ones(1, 1, 1, 1)
    given = one, key, value, torch.tensor(0.25), torch.tensor(0.5), 2 * one
    p = math.e / (1 + math.e)
    assert quantised_backward(*given).item() == pytest.approx(p * (1 - p) * 255)
    assert quantised_backward(*given, grad_lse=3 * one[0]).item() == pytest.approx(p * (1 - p) * 255 + 3 * p)
    assert quantised_backward(*given, scale=-2.0).item() == pytest.approx(-2 * p**2 * 255 / (p**2 + (1 - p) ** 2) ** 2
                                                                          * (1 - p) ** 2)  # fmt: skip


def stored(dtype: torch.dtype, grain: str) -> tuple[torch.Tensor, ...]:
    """Return a float64 query, quantised key and value, and their scales."""
    generator = torch.Generator().manual_seed(5)
    shapes = (2, 4, 3, 5), (2, 2, 6, 5), (2, 2, 6, 3)
    query, *tokens = (torch.randn(shape, generator=generator).double() for shape in shapes)
    scales = [absmax_scale(x, dtype, GRAIN[grain]) for x in tokens]
    return query, *(quantise(x, scale, dtype) for x, scale in zip(tokens, scales, strict=True)), *scales


@pytest.mark.parametrize("grain", GRAIN)
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True, "causal_alignment": "lower_right"},
        {"scale": -0.3, "rounded_to": torch.bfloat16},
        {"key_lengths": torch.tensor([0, 4])},
    ],
)
def test_it_is_what_autograd_gives(grain: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    query, *rest = stored(dtype, grain)
    result = quantised_attention(query.requires_grad_(), *rest, enable_gqa=True, **options)
    assert result.lse is not None
    grad_output, grad_lse = torch.randn(2, 4, 3, 3).double(), torch.randn(2, 4, 3).double()
    seen = result.lse > -torch.inf
    loss = (result.output * grad_output).sum() + torch.where(seen, result.lse * grad_lse, 0.0).sum()
    (want,) = torch.autograd.grad(loss, query)
    got = quantised_backward(query.detach(), *rest, grad_output, grad_lse=grad_lse, enable_gqa=True, **options)
    torch.testing.assert_close(got, want.nan_to_num(0.0), rtol=1e-12, atol=1e-12)


def test_absent_tokens_have_no_part_in_it() -> None:
    query, key, value, key_scale, value_scale = stored(torch.float8_e4m3fn, "token")
    lengths, flow = torch.tensor([0, 4]), torch.ones(2, 4, 3, 3)
    options = {"enable_gqa": True, "key_lengths": lengths}
    clean = quantised_backward(query, key, value, key_scale, value_scale, flow, **options)
    for b, length in enumerate(lengths.tolist()):
        for codes in (key, value):
            codes.view(torch.uint8)[b, :, length:] = 0x7F
        key_scale[b, :, length:], value_scale[b, :, length:] = math.nan, math.inf
    assert torch.equal(quantised_backward(query, key, value, key_scale, value_scale, flow, **options), clean)
    assert not clean[0].any()
    assert clean[1].all()


def test_a_gradient_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match="grad_output"):
        quantised_backward(*stored(torch.int8, "head"), torch.ones(2, 4, 3, 5), enable_gqa=True)
    query, key, value, _, value_scale = stored(torch.int8, "head")
    with pytest.raises(InputError, match=r"^scale of key has shape \(5,\)"):
        quantised_backward(query, key, value, torch.ones(5), value_scale, torch.ones(2, 4, 3, 3), enable_gqa=True)


# ---------------------------------------------------------------- the budget


def drawn(seed: int = 0) -> Tensors:
    """Return the tensors of one batch element, float64, with a triangle and a gradient of the lse."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "query": (HEADS, ROWS, DIM), "key": (HEADS, KEYS, DIM), "value": (HEADS, KEYS, VALUE),
        "grad_output": (HEADS, ROWS, VALUE), "grad_lse": (HEADS, ROWS, 1),
    }  # fmt: skip
    x = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return x | {"visible": torch.ones(HEADS, ROWS, KEYS, dtype=torch.bool).tril(1)}


def bound_and_sizes(
    x: Tensors, fmt: Format = FLOAT32, accuracy: str = "fused", key_scale: torch.Tensor = ONE
) -> tuple[Bound, Tensors, Tensors]:
    """Return the bound, and the sizes of random and of common errors."""
    sizes: list[Tensors] = []

    def kept(steps: Any, x: Tensors, shared: Any, *given: Tensors) -> dict[str, Bound]:
        sizes.extend(given)
        return propagated(steps, x, shared, *given)

    with patch.object(quantised_gradient, "propagated", kept):
        found = query_bound(x, key_scale, ONE, SCALE, arithmetic_of(fmt, accuracy))
    return found, sizes[0], sizes[1]


def of_heads(x: Tensors, e: Tensors) -> torch.Tensor:
    """Return the gradients of all heads with these errors, 0 where none is given for a step."""
    of_head = partial(query_pass, scale=SCALE)
    parts = [({n: t[h] for n, t in x.items()}, {n: t[h] for n, t in e.items()}) for h in range(HEADS)]
    return torch.stack([of_head(*part)["query"] for part in parts])


def test_the_pass_without_errors_is_the_gradient() -> None:
    x = drawn()
    tensors = [x[name][None] for name in ("query", "key", "value", "grad_output")]
    options: dict[str, Any] = {"is_causal": True, "causal_alignment": "lower_right", "scale": SCALE}
    right = backward(*tensors, grad_lse=x["grad_lse"][None, ..., 0], **options).query[0]
    torch.testing.assert_close(bound_and_sizes(x)[0].total, right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("accuracy", ["fused", "eager"])
def test_the_bounds_hold_what_errors_of_the_steps_do(accuracy: str) -> None:
    x = drawn(1)
    bound, random, fixed = bound_and_sizes(x, BFLOAT16 if accuracy == "eager" else FLOAT32, accuracy)
    unit = 1e-3 if accuracy == "eager" else 1.0  # so that the first order is what there is
    zeros = {name: torch.zeros_like(size) for name, size in (fixed | random).items()}
    right, generator, count = of_heads(x, zeros), torch.Generator().manual_seed(2), 300
    square, closest = torch.zeros_like(right), 0.0
    for n in range(count):
        signs = {n: torch.randint(2, size.shape, generator=generator).double() * 2 - 1 for n, size in random.items()}
        moved = of_heads(x, zeros | {name: unit * size * signs[name] for name, size in random.items()})
        square += ((moved - right) / unit) ** 2 / count
        for kind in fixed:  # that of all one sign, and a part of each
            part = torch.ones_like(fixed[kind]) if n == 0 else torch.rand(fixed[kind].shape, generator=generator)
            common = of_heads(x, zeros | {kind: unit * part * fixed[kind]})
            closest = max(closest, float(((common - right).abs() / unit / bound.fixed).max()))
    last = bound.square - square
    assert (torch.sqrt(square) <= 1.2 * torch.sqrt(bound.square)).all()
    assert (last.abs() <= 0.35 * bound.square).all()
    assert 0.1 < closest <= 1


def test_one_key_by_hand() -> None:
    """dS = dlse and dq = scale dlse k. Fused rounds dS and dq to bfloat16; eager dlse, P and dS, which autograd stores,
    with a factor and the scale, the product k, and dq. Both take a fast exponential, in the lse too."""
    one, u = torch.ones(1, 1, 1).double(), 2.0**-8
    x = {"query": 0 * one, "key": 3 * one, "value": one, "grad_output": 0 * one, "grad_lse": 2 * one}
    x |= {"visible": one.bool()}
    size = abs(SCALE) * 6
    for accuracy, random, common, stores in (("fused", 1, 0, 1), ("eager", 6, 1, 2)):
        a = arithmetic_of(BFLOAT16, accuracy)
        error = ((CONFIDENCE * random**0.5 + common) * u + a.exponential + a.lse) * size
        right = error + stores * u * (size + error)
        assert query_bound(x, one, one, SCALE, a).budget(a).item() == pytest.approx(right, rel=1e-3)


def test_products_are_rounded_to_the_class() -> None:
    for fmt, accuracy, y in ((BFLOAT16, "eager", 2.0**-8), (BFLOAT16, "fused", 2.0**-24), (FLOAT32, "eager", 2.0**-24)):
        assert product_roundoff(arithmetic_of(fmt, accuracy)) == y
        x = drawn(2)
        _, random, fixed = bound_and_sizes(x, fmt, accuracy)
        assert torch.equal(fixed["key"], y * x["key"])
        assert torch.equal(fixed["value"], y * x["value"])
        assert torch.equal(random["query"], y * x["query"].abs())


def test_what_a_scale_is_folded_into_may_fall_below_the_normal_numbers() -> None:
    """Half the least subnormal of float16, 2^-25, over the scale: of dS for tokens, of the query for channels."""
    x, step = drawn(3) | {"query": torch.zeros(HEADS, ROWS, DIM).double()}, 2.0**-25
    tokens, channels = (torch.full((HEADS, *shape), 2.0**-9).double() for shape in ((KEYS, 1), (1, DIM)))
    for accuracy in ("fused", "eager"):
        _, of_tokens, _ = bound_and_sizes(x, FLOAT16, accuracy, tokens)
        assert of_tokens["grad_score"][:, 0, 0].min() >= step * 2**9 / abs(SCALE)
        assert not of_tokens["query"].any()
        _, of_channels, _ = bound_and_sizes(x, FLOAT16, accuracy, channels)
        assert of_channels["grad_score"].min() < step * 2**9
        assert (of_channels["query"] == (step * 2**9 if accuracy == "eager" else 0)).all()
    assert not of_channels["grad_score"][~x["visible"]].any()


# ---------------------------------------------------------------- the form


def test_a_row_without_keys_has_gradient_0_and_next_to_no_budget() -> None:
    golden = load_form("quantised-gradient-lengths-lse-float32")
    assert golden.inputs["key_lengths"][0] == 0
    assert not golden.truth["grad_query"][0].any()
    budget = FORMS["quantised"].budgets(golden, "fused")["grad_query"]
    assert budget[0].max() < 1e-30
    assert budget[1:].min() > 1e-10


def test_a_kernel_without_a_gradient_is_not_supported() -> None:
    found = hold_case(lambda *x: QUANTISED(*x)[0].detach(), load_form("quantised-gradient-float32"))
    assert (found.outcome, found.what) == ("not_supported", "no gradient comes back: output has no grad_fn")


def test_a_word_that_no_gradient_has_is_told() -> None:
    with pytest.raises(InputError, match="grad is 'query': use one of"):
        problem_of("quantised", "q=1/k=1/grad=query")
