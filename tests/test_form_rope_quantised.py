"""Rotary and quantised forms: what needs no vector, what a target is given, budgets by hand."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from attnspec.conformance.forms.hold import FORMS, Held, hold, hold_case
from attnspec.conformance.forms.rope import rotation_budget
from attnspec.golden.forms import form_case, problem_of
from attnspec.golden.forms.form import FormCase
from attnspec.golden.forms.quantise import QuantiseProblem, stored_number
from attnspec.golden.forms.rope import RopeProblem
from attnspec.golden.store import FormGolden, load_form
from attnspec.spec.errors import InputError

HONEST = Path(__file__).parent / "honest" / "forms"
ROPE = runpy.run_path(str(HONEST / "rope.py"))["target"]
QUANTISED = runpy.run_path(str(HONEST / "quantised.py"))["target"]


def held(results: Any) -> dict[str, Held]:
    return {result.case: result for result in results}


# ---------------------------------------------------------------- what needs no vector


@pytest.mark.parametrize("change", [lambda x: x.nan_to_num(0.0), lambda x: x + 0 * x.sum(), lambda x: x[:, :1]])
def test_a_nan_that_is_lost_or_spreads_is_told(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def target(query: torch.Tensor, key: torch.Tensor, *rest: Any) -> torch.Tensor:
        output: torch.Tensor = QUANTISED(query, key, *rest)[0]
        return change(output) if output.isnan().any() else output

    found = hold_case(target, load_form("quantised-e4m3-float32"))
    assert (found.outcome, found.rule) == ("fail", "mask.visible-nan")


# ---------------------------------------------------------------- what a target is given


def test_what_lies_beyond_the_lengths_is_spoiled() -> None:
    golden, seen = load_form("quantised-lengths-token-e4m3-bfloat16"), []

    def target(*tensors: torch.Tensor, key_lengths: torch.Tensor, enable_gqa: bool) -> Any:
        seen.extend(tensors)
        return QUANTISED(*tensors, key_lengths=key_lengths, enable_gqa=enable_gqa)

    assert hold_case(target, golden).outcome == "pass"
    lengths = golden.inputs["key_lengths"].tolist()
    assert lengths[0] == 0
    for b, length in enumerate(lengths):
        for tensor in seen[1:]:
            assert tensor[b, :, length:].isnan().all()
            assert not tensor[b, :, :length].isnan().any()


def test_options_are_given_where_a_case_has_them() -> None:
    def target(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return ROPE(x, positions)  # type: ignore[no-any-return]

    results = held(hold(target, "rope"))
    assert results["rope-half-split-float32"].outcome == "pass"
    for name, word in (("interleaved-float32", "interleaved"), ("partial-float32", "rotary_dim")):
        assert results[f"rope-{name}"].what == f"the signature has no {word}"


def test_a_rotation_without_a_gradient_is_not_supported() -> None:
    found = hold_case(lambda x, positions: ROPE(x.detach(), positions), load_form("rope-gradient-float32"))
    assert (found.outcome, found.what) == (
        "not_supported", "no gradient comes back: what came back has no grad_fn",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        ("rope-partial-float32", lambda x: torch.cat([x[..., :4], x[..., 4:] * 1.5], -1), "rope.partial"),
        ("rope-half-split-float32", lambda x: x * (1 + 1e-6 * (torch.arange(5)[:, None] == 0)), "rope.position"),
        ("rope-attention-shift-17-float32", lambda x: x * 1.5, "rope.distance"),
        ("rope-half-split-float32", lambda x: x * 1.5, "accuracy.rope-within-budget"),
    ],
)
def test_a_fault_is_told_by_the_rule_it_breaks(name: str, change: Callable[..., torch.Tensor], rule: str) -> None:
    found = hold_case(lambda x, positions, **options: change(ROPE(x, positions, **options)), load_form(name))
    assert (found.outcome, found.rule) == ("fail", rule)


# ---------------------------------------------------------------- the cases


def test_stored_numbers_reach_the_ends_and_the_subnormal_ones() -> None:
    for name, lowest, largest in (("int8", -128, 127), ("e4m3", -448, 448)):
        golden = load_form(f"quantised-ones-{name}-float32")
        for tensor in ("key", "value"):
            numbers = golden.inputs[tensor].double()
            assert (numbers.min(), numbers.max()) == (lowest, largest)
            assert golden.inputs[f"{tensor}_scale"] == 1
    small = load_form("quantised-subnormal-e4m3-float32").inputs["value"].double()
    assert small.abs().max() < 2.0**-4
    assert ((small != 0) & (small.abs() < 2.0**-6)).double().mean() > 0.3


def test_equal_scales_have_the_truth_of_one_scale() -> None:
    one = load_form("quantised-equal-tensor-float32")
    for name in ("head", "channel"):
        other = load_form(f"quantised-equal-{name}-float32")
        assert other.inputs["key_scale"].numel() > 1
        assert torch.equal(other.truth["output"], one.truth["output"])
        assert torch.equal(other.truth["lse"], one.truth["lse"])


def test_a_shift_of_all_positions_leaves_the_truth_alone() -> None:
    golden = load_form("rope-attention-shift-2046-interleaved-float32")
    near = replace(golden.case.problem, shift=0)  # type: ignore[type-var]
    inputs = near.inputs()
    assert torch.equal(inputs["positions"] + 2046, golden.inputs["positions"])
    truth = near.truth(inputs)
    for name in ("output", "lse"):
        assert torch.equal(torch.from_numpy(truth[name]), golden.truth[name])


@pytest.mark.parametrize(
    ("form", "text", "told"),
    [
        ("rope", "q=1/positions=odd", "positions is 'odd'"),
        ("rope", "q=1/rotary_dim=3", "rotary_dim is 3: use an even number from 2 to d, 8"),
        ("rope", "q=1/d=2/rotary_dim=4", "rotary_dim is 4"),
        ("rope", "q=1/first=2000000", "first is 2000000: use 0 to 1048576"),
        ("rope", "q=1/grad/keys=2", "keys has no gradients"),
        ("rope", "q=1/causal", "causal and shift are of attention"),
        ("quantised", "q=1/k=1/stored=int4", "stored is 'int4': use one of int8, e4m3"),
        ("quantised", "q=1/k=1/key_scale=row", "key_scale is 'row'"),
        ("quantised", "hq=3/hkv=2", "hq is 3 and hkv 2: use a multiple"),
    ],
)
def test_a_problem_that_no_case_has_is_told(form: str, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        problem_of(form, text)


# ---------------------------------------------------------------- budgets by hand


def test_the_budget_of_one_pair_by_hand() -> None:
    x = torch.tensor([3.0, 4.0]).reshape(1, 1, 1, 2)
    rotated, budget = rotation_budget(x, torch.tensor([2]), RopeProblem(d=2))
    cos, sin, w, f = math.cos(2.0), math.sin(2.0), 2.0**-24, 2.0**-126
    y1, y2 = 3 * cos - 4 * sin, 3 * sin + 4 * cos
    assert rotated.flatten().tolist() == pytest.approx([y1, y2])
    alpha = 2.0**-20 * 2
    error = alpha * abs(y2) + alpha**2 / 2 * abs(y1) + 2.0**-21 * 7 + w * (abs(3 * cos) + abs(4 * sin) + abs(y1))
    assert budget[0, 0, 0, 0].item() == pytest.approx(error + w * (abs(y1) + error) + 10 * f + f, rel=1e-12)
    stored = rotation_budget(x.bfloat16(), torch.tensor([2]), RopeProblem(d=2), "eager")[1][0, 0, 0, 0].item()
    u, step = 2.0**-8, 2.0**-134
    error += 2 * u * (abs(3 * cos) + abs(4 * sin)) + step * 9
    assert stored == pytest.approx(error + u * (abs(y1) + error), rel=1e-12)


def test_one_key_leaves_the_value_its_products_and_its_store() -> None:
    name = "quantised-one-key-bfloat16"
    golden = load_form(name)
    found = FORMS["quantised"].budgets(golden, "fused")
    value, u, w = golden.truth["output"].abs(), 2.0**-8, 2.0**-24
    assert (found["output"] >= u * value).all()
    assert (found["output"] <= (2.5 * u + 64 * w) * value + 1e-30).all()  # the weight and the output are stored


def test_eager_allows_the_product_rounded_to_the_querys_dtype_and_fused_does_not() -> None:
    rounded = runpy.run_path(str(HONEST / "quantised_rounded.py"))["target"]
    case = form_case("quantised-one-key-bfloat16")
    golden = load_form(case.name)
    assert hold_case(rounded, golden, "eager").outcome == "pass"
    x = golden.inputs
    products = (x["value"].double() * x["value_scale"].double()).to(torch.bfloat16).double()
    assert (products != golden.truth["output"]).any()
    wide = FormGolden(case, {n: t.float() if n == "query" else t for n, t in golden.tensors.items()})
    off = hold_case(lambda q, *rest, **options: rounded(q.bfloat16(), *rest, **options).float(), wide)
    assert off.rule == "accuracy.quantised-within-budget"


def test_stored_numbers_by_hand() -> None:
    for quotient, number in ((2.5, 2), (3.5, 4), (-0.5, 0), (-1.5, -2), (127.5, 127), (300, 127), (-128.5, -128)):
        assert stored_number(Fraction(quotient), "int8") == number
    for quotient, number in (
        (17, 16),
        (19, 20),
        (-21, -20),
        (460, 448),
        (-1e9, -448),
        (2.0**-10, 0),
        (0.0029296875, 2.0**-8),
    ):
        assert stored_number(Fraction(quotient), "e4m3") == number


def test_a_step_is_allowed_near_a_boundary_alone() -> None:
    problem = QuantiseProblem(k=1, d=4)
    scale, w = torch.tensor(0.375), 2.0**-24
    key = torch.tensor([2.5, 2.5 * (1 + 2 * w), 2.6, 300.5]) * 0.375
    tensors = {"key": key.reshape(1, 1, 1, 4), "key_scale": scale}
    golden = FormGolden(FormCase("by-hand", problem, (), ""), tensors)
    assert FORMS["quantise"].budgets(golden, "fused")["output"].flatten().tolist() == [1.0, 1.0, 0.0, 0.0]
    power = replace(golden, tensors=tensors | {"key_scale": torch.tensor(0.25)})
    assert not FORMS["quantise"].budgets(power, "fused")["output"].any()


def test_a_stored_number_of_another_dtype_is_told() -> None:
    golden = load_form("quantise-int8-float32")
    found = hold_case(lambda x, scale, dtype: (x / scale).round(), golden)
    assert (found.outcome, found.what) == ("fail", "output is torch.float32, should be torch.int8")
