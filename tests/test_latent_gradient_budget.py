"""The budget of the gradients of latent attention: its passes are the gradients, its bounds what errors do to them."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms import latent_gradients, propagation
from attnspec.conformance.forms.hold import FORMS
from attnspec.conformance.forms.latent_gradients import OF_HEADS, absorbed_pass, expanded_pass, gradient_budgets
from attnspec.conformance.forms.propagation import Bound, propagated
from attnspec.conformance.row_errors import CONFIDENCE
from attnspec.golden.store import load_form
from attnspec.reference.latent import latent_backward
from attnspec.spec.dtypes import BFLOAT16, FLOAT32, Format

Tensors = dict[str, torch.Tensor]
HEADS, ROWS, KEYS, NOPE, ROPE, RANK, VALUE = 2, 3, 4, 3, 2, 5, 2
SCALE = 0.7
PASSES = {"expanded": expanded_pass, "absorbed": absorbed_pass}


def drawn(seed: int = 0) -> Tensors:
    """Return the tensors of one batch element, float64, with a triangle and a gradient of the lse."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "nope": (HEADS, ROWS, NOPE), "rope": (HEADS, ROWS, ROPE), "latent": (KEYS, RANK), "key_rope": (KEYS, ROPE),
        "w_uk": (HEADS, NOPE, RANK), "w_uv": (HEADS, VALUE, RANK), "grad_output": (HEADS, ROWS, VALUE),
        "grad_lse": (HEADS, ROWS, 1),
    }  # fmt: skip
    x = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return x | {"visible": torch.ones(HEADS, ROWS, KEYS, dtype=torch.bool).tril(1)}


def of_way(way: str, x: Tensors, fmt: Format = FLOAT32) -> tuple[dict[str, Bound], Tensors, Tensors, Tensors]:
    """Return the bounds of a form, and the sizes that they are made of: random, fixed, last."""
    sizes: list[Tensors] = []

    def kept(steps: object, x: Tensors, shared: object, *given: Tensors) -> dict[str, Bound]:
        sizes.extend(given)
        return propagated(steps, x, OF_HEADS, *given)  # type: ignore[arg-type]

    with patch.object(latent_gradients, "propagated", kept):
        found = getattr(latent_gradients, f"{way}_bounds")(x, SCALE, arithmetic_of(fmt))
    return found, *sizes


def of_heads(steps: propagation.Steps, x: Tensors, e: Tensors) -> Tensors:
    """Return the results of all heads, one after the other."""
    heads = [
        steps({n: t if n in OF_HEADS else t[h] for n, t in x.items()}, {n: t[h] for n, t in e.items()})
        for h in range(HEADS)
    ]
    return {name: torch.stack([head[name] for head in heads]) for name in heads[0]}


@pytest.mark.parametrize("way", PASSES)
def test_a_pass_without_errors_gives_the_gradients(way: str) -> None:
    x = drawn()
    bounds, *_ = of_way(way, x)
    query = torch.cat([x["nope"], x["rope"]], -1)[None]
    tensors = query, x["latent"][None], x["key_rope"][None], x["w_uk"], x["w_uv"], x["grad_output"][None]
    upper = {"is_causal": True, "causal_alignment": "lower_right"}  # 3 queries of 4 keys: j <= i + 1
    right = latent_backward(*tensors, grad_lse=x["grad_lse"][None, ..., 0], scale=SCALE, **upper)
    for name, bound in bounds.items():
        total = bound.total.sum(0) if name in OF_HEADS else bound.total
        want = getattr(right, name)
        torch.testing.assert_close(total, want[0] if want.ndim > total.ndim else want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("way", PASSES)
def test_the_root_of_the_square_is_what_random_errors_of_the_steps_do_in_the_mean(way: str) -> None:
    x = drawn(1)
    bounds, random, _, last = of_way(way, x)
    zeros = {name: torch.zeros(HEADS, *size.shape[1:]).double() for name, size in random.items()} | {
        "scale": torch.zeros(HEADS).double()
    }
    steps, generator, count = partial(PASSES[way], scale=SCALE), torch.Generator().manual_seed(2), 400
    right = of_heads(steps, x, zeros)
    squares = {name: torch.zeros_like(total) for name, total in right.items()}
    for _ in range(count):
        signs = {n: torch.randint(2, size.shape, generator=generator).double() * 2 - 1 for n, size in random.items()}
        moved = of_heads(steps, x, zeros | {name: size * signs[name] for name, size in random.items()})
        for name, total in moved.items():
            error = total - right[name]
            squares[name] += error**2 / count
            assert (error.abs() <= CONFIDENCE * torch.sqrt(bounds[name].square)).all()
    for name, square in squares.items():
        ratio = torch.sqrt(square / (bounds[name].square - last[name] ** 2))
        assert 0.8 < ratio.min() <= ratio.max() < 1.2, name


@pytest.mark.parametrize("way", PASSES)
def test_the_fixed_part_holds_what_common_errors_of_any_sign_do(way: str) -> None:
    x = drawn(3)
    bounds, random, fixed, _ = of_way(way, x)
    zeros = {name: torch.zeros_like(size) for name, size in (fixed | random).items()}
    steps, generator = partial(PASSES[way], scale=SCALE), torch.Generator().manual_seed(4)
    right = of_heads(steps, x, zeros)
    closest = 0.0
    for sign in (1.0, -1.0):
        for _ in range(30):
            part = {n: torch.rand(size.shape, generator=generator).double().clamp_min(0.5) for n, size in fixed.items()}
            moved = of_heads(steps, x, zeros | {name: sign * size * part[name] for name, size in fixed.items()})
            for name, total in moved.items():
                closest = max(closest, float(((total - right[name]).abs() / bounds[name].fixed).max()))
    assert 0.3 < closest <= 1


def test_errors_of_a_sum_by_hand() -> None:
    """Two heads of y = 3 (x_1 + e_1) + 4 (x_2 + e_2)."""

    def steps(x: Tensors, e: Tensors) -> Tensors:
        return {"y": (x["weights"] * (x["x"] + e["each"] + e["all"])).sum(-1, keepdim=True)}

    x = {"weights": torch.tensor([3.0, -4.0]).double(), "x": torch.tensor([[1.0, 2.0], [5.0, 0.0]]).double()}
    each, small = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).double(), torch.full((2, 2), 2.0).double()
    found = propagated(steps, x, ("weights",), {"each": each}, {"all": small}, {"y": torch.tensor([[0.0], [12.0]])})[
        "y"
    ]
    assert found.total.tolist() == [[-5.0], [15.0]]
    assert found.square.tolist() == [[9.0], [9.0 + 16.0 + 144.0]]
    assert found.fixed.tolist() == [[14.0], [14.0]]  # 2 (3 + 4), since 2 (4 - 3) + 6 * 2 * 5 is more
    a = arithmetic_of(BFLOAT16)
    both = found.added(a)
    assert (both.total.item(), both.fixed.item(), both.parts) == (10.0, 28.0, 2)
    assert both.square.item() == pytest.approx(9 + 169 + 2.0**-16 * (25 + 225), rel=1e-15)
    error = CONFIDENCE * both.square.item() ** 0.5 + 28.0 + 6 * 2.0**-24 * 10
    assert both.budget(a).item() == pytest.approx(error + 2.0**-8 * (10 + error), rel=1e-12)


def test_the_gradients_of_one_token_by_hand() -> None:
    """One query, one token of rank 1: p = 1, dc = do W^UV = 2 and dW^UV = do c = 6."""
    one = torch.ones(1, 1, 1)
    inputs = {"query": torch.zeros(1, 1, 1, 2), "latent": 3 * one, "key_rope": 0 * one, "w_uk": one, "w_uv": one}
    inputs = {name: x.bfloat16() for name, x in (inputs | {"grad_output": 2 * one[None]}).items()}
    found = gradient_budgets(inputs, torch.ones(1, 1, 1, 1, dtype=torch.bool), 1.0, arithmetic_of(BFLOAT16))
    unit = 2.0**-8
    for name, size, stores in (("w_uv", 6, 2), ("latent", 2, 4)):
        # weight, and dv or o'; of dc also what one head gives, and all heads together
        error = CONFIDENCE * stores**0.5 * unit * size
        assert found[name].item() == pytest.approx(error * (1 + unit) + unit * size, rel=0.02)


def test_a_token_that_no_query_sees_has_budget_0() -> None:
    golden = load_form("latent-gradients-empty-cache-float32")
    budgets = FORMS["latent"].budgets(golden, "fused")
    absent = torch.arange(7) >= golden.inputs["key_lengths"][:, None]
    assert absent[0].all()
    for name in ("grad_latent", "grad_key_rope"):
        assert not golden.truth[name][absent].any()
        assert not budgets[name][absent].any()
        assert (budgets[name][~absent] > 0).all()


def test_directions_are_taken_in_parts() -> None:
    x = drawn(5)
    whole, *_ = of_way("absorbed", x)
    with patch.object(propagation, "DIRECTION_ELEMENTS", 60):
        parts, *_ = of_way("absorbed", x)
    for name, bound in whole.items():
        torch.testing.assert_close(parts[name].square, bound.square)
        torch.testing.assert_close(parts[name].fixed, bound.fixed)
