"""Dropout in the call, the suite and the backends: what is read off a kernel, what chance allows, and the budgets."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mutants import FAMILIES
from mutants.house import HONEST, Mutant, kernel_of
from mutants.matrix import finding, in_order

from attnspec.conformance.budget import error_budget
from attnspec.conformance.catalogue import BY_NAME, case_named, cases
from attnspec.conformance.checks.dropout import SHIFT_SIGMAS, SIGMAS, drawn, most_alike_shift, seeded, shares_of
from attnspec.conformance.dropout_budget import dropout_budget, dropout_gradient_budget, factors, rows_apart
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.implementations.torch_eager import backend as eager
from attnspec.reference.attention import answer
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem
from attnspec.spec.profiles import PROFILES

pytestmark = pytest.mark.usefixtures("one_thread")
DROPOUT = [case for case in cases("quick") if case.problem.dropout]
RIGHT = ("torch_eager", f"{HONEST / 'dropped.py'}:attention", f"{HONEST / 'dropped_tiles.py'}:attention")
OPTIONS = (
    "b=2/hq=4/hkv=2/q=5/k=9/d=8/dropout=0.5/causal/grad",
    "b=3/bkv=1/hq=2/q=3/k=7/d=8/dtype=float64/mask=float.bhqk.random/dropout=0.5/scale=-0.7/grad=lse",
    "b=2/hq=2/q=7/k=5/d=8/dtype=bfloat16/mask=bool.b11k.padding/dropout=0.5/causal=lower_right/grad",
    "b=2/hq=2/q=3/k=9/d=8/dropout=0.5/lengths=ragged/grad",
)


def source(seed: int) -> torch.Generator:
    """Return a generator with a fixed stream."""
    return torch.Generator().manual_seed(seed)


def masked(text: str, seed: int = 1) -> tuple[Problem, Call, torch.Tensor]:
    """Return a problem, its call, and a mask that its dropout may have drawn."""
    problem = Problem.parse(text)
    call = make_call(problem)
    shape = (problem.batch, problem.q_heads, problem.q_len, problem.k_len)
    return problem, call, torch.rand(shape, generator=source(seed)) >= call.dropout_p


# ---------------------------------------------------------------- the vocabulary


def test_a_problem_says_its_dropout() -> None:
    problem = Problem.parse("q=2/k=3/d=4/dropout=0.25")
    assert (problem.dropout, str(problem)) == (0.25, "q=2/k=3/d=4/dtype=float32/dropout=0.25")
    assert make_call(problem).dropout_p == 0.25
    assert problem.features() == {"dropout_p"}
    assert PROFILES["dropout"].holds(problem, False)
    assert not PROFILES["core"].holds(problem, False)


def test_dropout_of_0_is_none() -> None:
    plain = Problem.parse("q=2/k=3/d=4")
    assert plain.but(dropout=0.0) == plain == Problem.parse("q=2/k=3/d=4/dropout=0")
    assert "dropout_p" not in plain.features()


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan])
def test_no_problem_has_a_dropout_that_is_no_probability(p: float) -> None:
    with pytest.raises(InputError, match="use a probability from 0 to 1"):
        Problem(q_len=2, k_len=3, head_dim=4, dropout=p)


def test_the_options_of_a_call_leave_out_a_dropout_of_0_alone() -> None:
    call = make_call(Problem(q_len=2, k_len=3, head_dim=4))
    assert call.options() == {}
    assert call.but(dropout_p=1.0).options() == {"dropout_p": 1.0}
    assert math.isnan(call.but(dropout_p=math.nan).options()["dropout_p"])  # type: ignore[arg-type]


def test_no_default_claims_dropout() -> None:
    problem = Problem(q_len=2, k_len=3, head_dim=4, dropout=0.5)
    assert Capabilities().lacks(problem) == "dropout_p (dropout on the weights) is not declared"
    assert Capabilities(features=("dropout_p",)).lacks(problem) is None


def test_a_call_with_dropout_has_no_answer_without_its_mask() -> None:
    _, call, keep = masked(OPTIONS[0])
    with pytest.raises(InputError, match="keep is None: give the mask"):
        answer(call)
    with pytest.raises(InputError, match="keep is None: give the mask"):
        gradients(call)
    assert answer(call, keep=keep).output.shape == call.query.shape


def test_other_checks_take_no_problem_with_dropout() -> None:
    with pytest.raises(InputError, match="does not know what a call with dropout gives"):
        case_named("output_stays_within_budget/q=2/k=3/d=4/dropout=0.5")
    with pytest.raises(InputError, match="the check needs dropout in the case"):
        case_named("a_seed_names_its_mask/q=2/k=3/d=4")


# ---------------------------------------------------------------- the reference


def test_the_reference_drops_weights_and_leaves_the_lse() -> None:
    value = torch.tensor([[[[1.0], [10.0], [100.0], [1000.0]]]])
    call = Call(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 4, 1), value, dropout_p=0.75)
    keep = torch.tensor([[[[True, False, False, True]]]])
    result = answer(call, keep=keep)
    assert result.output.item() == 1001.0  # 1/4 * (1 + 1000) / (1 - 3/4)
    assert result.lse is not None
    assert result.lse.item() == math.log(4)


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize("text", OPTIONS)
def test_rows_apart_give_the_same_output(text: str) -> None:
    problem, call, keep = masked(text)
    corner = problem.corner
    rows = answer(rows_apart(call, keep, corner)).output
    truth = answer(call, corner, keep).output
    torch.testing.assert_close(rows.reshape(truth.shape), truth, rtol=1e-13, atol=1e-15)


def test_factors_are_one_over_the_chance_to_be_kept() -> None:
    keep = torch.tensor([True, False])
    assert [factors(keep, p).tolist() for p in (0.0, 0.75, 1.0)] == [[1.0, 0.0], [4.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("text", OPTIONS)
def test_budgets_where_nothing_is_dropped_are_near_those_without(text: str) -> None:
    problem, call, keep = masked(text.replace("dropout=0.5/", ""))
    corner = problem.corner
    all_kept = torch.ones_like(keep)
    ratio = dropout_budget(call, all_kept, causal_alignment=corner) / error_budget(call, causal_alignment=corner).output
    assert ratio.min() >= 1
    assert ratio.max() <= 4
    assert call.grad_output is not None
    plain = gradient_budget(call, call.grad_output, call.grad_lse, causal_alignment=corner)
    with_factor = dropout_gradient_budget(call, all_kept, causal_alignment=corner)
    for name in ("query", "key", "value"):
        ratio = getattr(with_factor, name) / getattr(plain, name)
        assert ratio.min() >= 0.99, name
        assert ratio.median() <= 20, name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("text", [OPTIONS[0], OPTIONS[3]])
def test_gradients_of_float32_stay_far_below_the_budget(text: str, seed: int) -> None:
    problem, call, _ = masked(text)
    kernel = seeded(resolve("torch_eager"), seed)
    keep = drawn(kernel, problem.but(seed=seed), call)
    got, truth = kernel.gradients(call)[1], gradients(call, keep=keep)
    budget = dropout_gradient_budget(call, keep, accuracy="eager")
    for name in ("query", "key", "value"):
        error = (getattr(got, name).double() - getattr(truth, name)).abs()
        assert (error <= getattr(budget, name) / 2).all(), name


# ---------------------------------------------------------------- statistics

SHAPE = (3, 4, 33, 48)


def lost(seed: int, p: float, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Return weights that are dropped independently, 1 or 0."""
    return (torch.rand(shape, generator=source(seed)) < p).double()


def accused(dropped: torch.Tensor, p: float) -> bool:
    """Whether the shares or the shifts of a mask lie beyond what chance allows."""
    far = [
        bool(((shares - p).abs() > SIGMAS * math.sqrt(p * (1 - p) / count)).any())
        for _, shares, count in shares_of(dropped)
    ]
    return any(far) or most_alike_shift(dropped)[1] > SHIFT_SIGMAS * p * (1 - p) / math.sqrt(dropped.numel())


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.75])
def test_chance_accuses_no_mask(p: float) -> None:
    assert [seed for seed in range(100) if accused(lost(seed, p), p)] == []


@pytest.mark.parametrize("axis", range(4))
def test_a_mask_that_repeats_is_found_with_its_shift(axis: int) -> None:
    shape = [size // 3 if i == axis else size for i, size in enumerate((3, 6, 33, 48))]
    tile = lost(1, 0.25, tuple(shape))
    dropped = torch.cat([tile, tile, tile], axis)
    shift, agreement = most_alike_shift(dropped)
    assert shift[axis] in (shape[axis], 2 * shape[axis])
    assert sum(shift) == shift[axis]
    assert agreement == pytest.approx(0.25 * 0.75, rel=0.05)


def test_a_key_that_is_never_dropped_is_found() -> None:
    dropped = lost(1, 0.25)
    assert not accused(dropped, 0.25)
    dropped[..., 7] = 0
    assert accused(dropped, 0.25)


def test_shares_are_those_of_every_part() -> None:
    dropped = torch.zeros(2, 3, 4, 5)
    dropped[1, :, :, 2] = 1
    found = {part: (shares.tolist(), count) for part, shares, count in shares_of(dropped)}
    assert found["whole"] == (pytest.approx(0.1), 120)
    assert found["batch"] == (pytest.approx([0.0, 0.2]), 60)
    assert found["head"] == (pytest.approx([0.1] * 3), 40)
    assert found["row"] == (pytest.approx([0.1] * 4), 30)
    assert found["key"] == (pytest.approx([0.0, 0.0, 0.5, 0.0, 0.0]), 24)


# ---------------------------------------------------------------- kernels


@pytest.mark.parametrize("target", RIGHT, ids=lambda target: Path(target).stem)
def test_a_right_kernel_passes_every_case(target: str) -> None:
    kernel = resolve(target)
    assert [(case.id, str(found)) for case in DROPOUT if (found := finding(kernel, case)) is not None] == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("target", RIGHT, ids=lambda target: Path(target).stem)
def test_a_right_kernel_passes_under_other_seeds(target: str, seed: int) -> None:
    checks = ("weights_are_dropped_at_the_rate_asked_for", "mean_over_seeds_is_the_plain_output")
    for case in (c.on(c.problem.but(seed=100 + seed)) for c in DROPOUT if c.check in checks):
        assert finding(resolve(target), case) is None


def test_the_math_kernel_of_pytorch_breaks_the_range_alone() -> None:
    kernel = resolve("torch_sdpa.math")
    found = {case.check: found.rule for case in DROPOUT if (found := finding(kernel, case)) is not None}
    assert found == {"p_that_is_no_probability_is_refused": "dropout.range"}


@pytest.mark.parametrize("mutant", FAMILIES["dropout"], ids=lambda mutant: mutant.name)
def test_a_mutant_is_found_by_a_case_of_its_rule(mutant: Mutant) -> None:
    kernel = kernel_of(mutant)
    citing = [case for case in in_order(DROPOUT, mutant.rule) if mutant.rule in case.rules]
    assert next((case.id for case in citing if finding(kernel, case) is not None), None) is not None


def test_a_hidden_key_that_gets_a_weight_breaks_the_rule_of_its_mask() -> None:
    def leaky(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **options: Any) -> Any:
        return eager(query, key, value, attn_mask=None if dropout_p else attn_mask, dropout_p=dropout_p, **options)

    kernel = Kernel("leaky", "leaky", leaky, eager.capabilities)
    check = BY_NAME["kept_weights_are_scaled_up_and_others_0"]
    problem = Problem.parse("b=2/hq=3/q=17/k=29/d=32/mask=bool.bhqk.random/dropout=0.25")
    with pytest.raises(Violation, match=r"^mask\.bool: with dropout, hidden keys have weights"):
        run_case(kernel, check.case(str(problem), problem))


def test_a_kernel_without_the_claim_is_not_asked() -> None:
    kernel = replace(resolve("torch_eager"), capabilities=Capabilities())
    for case in DROPOUT:
        with pytest.raises(NotSupported, match="not declared"):
            run_case(kernel, case)


def test_every_rule_of_the_chapter_is_cited_by_a_case() -> None:
    cited = {rule for case in DROPOUT for rule in case.rules}
    chapter = {"inverted", "on-weights", "lse", "zero", "one", "backward-mask", "seed", "unbiased", "rate", "range"}
    assert {f"dropout.{rule}" for rule in chapter} | {"backward.dropout"} <= cited


@pytest.mark.parametrize("p", [-0.25, 1.25, math.nan])
def test_eager_attention_refuses_what_is_no_probability(p: float) -> None:
    call = make_call(Problem(q_len=2, k_len=3, head_dim=4))
    with pytest.raises(InputError, match="use a probability from 0 to 1"):
        eager(call.query, call.key, call.value, dropout_p=p)
