"""Diagnosis of gradients names the mistake that a backward pass makes, for every mistake of the catalogue, and nothing
for honest kernels and for faults that the catalogue does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mutants import mutant_named
from mutants.house import kernel_of

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import case_named
from attnspec.conformance.diagnosis import steps as forward
from attnspec.conformance.diagnosis.backward.mistake import RIGHT_BACKWARD, BackwardMistake, scale_of_call
from attnspec.conformance.diagnosis.backward.mistakes import AGAIN, BACKWARD
from attnspec.conformance.diagnosis.backward.steps import BackwardSteps
from attnspec.conformance.diagnosis.diagnose import diagnose, session_of
from attnspec.conformance.diagnosis.diagnosis import Diagnosis
from attnspec.conformance.diagnosis.mistakes import CATALOGUE
from attnspec.conformance.diagnosis.session import BackwardSession
from attnspec.conformance.diagnosis.steps import Steps
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import Violation
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.reference.attention import answer
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call, Gradients, Result
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.problem import Problem
from attnspec.spec.rules import all_rules

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES = ("window_size", "softcap", "sinks", "alibi_slopes", "grad_alibi_slopes", "key_lengths", "backward")
SHOWING = (  # problems on one of which every mistake shows; {} is a dtype
    "b=2/hq=2/q=19/k=33/d=32/dtype={}/causal/grad=lse/seed=1",
    "b=2/hq=6/hkv=2/q=19/k=33/d=32/dtype={}/grad/seed=1",
    "b=3/bkv=1/hq=2/q=19/k=33/d=32/dtype={}/grad/seed=1",
    "b=2/hq=2/q=19/k=33/d=32/dtype={}/scale=-0.7/grad/seed=1",
    "b=2/hq=2/q=19/k=33/d=32/dtype={}/mask=float.11qk.random/grad/seed=1",
    "b=2/hq=2/q=19/k=33/d=32/dtype={}/mask=float.b11k.random/grad/seed=1",
    "b=2/hq=2/q=19/k=33/d=32/dtype={}/mask=float.bhqk.random/softcap=1.5/grad/scores=4/seed=1",
    "b=3/hq=6/hkv=2/q=19/k=33/d=32/dtype={}/sinks/grad=lse/seed=1",
    "b=3/hq=6/hkv=2/q=19/k=33/d=32/dtype={}/causal/alibi=symmetric.learned/grad=lse/seed=1",
    "b=2/hq=2/q=33/k=19/d=32/dtype={}/alibi=symmetric.learned/grad=lse/seed=1",
    "b=2/hq=2/q=19/k=33/d=32/dtype={}/grad/shift=-120/seed=1",
    "b=2/hq=2/q=19/k=33/d=32/dtype={}/grad/shift=120/seed=1",
)
OWN = [mistake for mistake in BACKWARD if mistake not in AGAIN]
FIRST_FORMS = list({mistake.name: mistake for mistake in reversed(OWN)}.values())
WITHIN_BUDGET = {"grad-sinks-against-the-keys"}  # in bfloat16
REFERENCE = [  # of each kind of option, and a scale, what a kernel that computes the weights again gets wrong
    "backward-causal-dropped", "backward-causal-sees-next-key", "backward-mask-bias-dropped", "backward-scale-absolute",
    "backward-softcap-dropped", "backward-alibi-dropped", "backward-heads-tiled", "backward-batch-0-keys",
]  # fmt: skip


def mistaken(mistake: BackwardMistake, dtype: str) -> Kernel:
    """A kernel with the right results, whose backward pass takes the mistaken steps and stores what comes of them."""
    declared = Capabilities(features=(*Capabilities().features, *FEATURES), dtypes=(dtype,))

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
        output, lse, _ = answer(Call(query, key, value, **options))
        assert lse is not None
        return Result(output.to(query.dtype), lse.float())

    def backward(call: Call, result: Result) -> Gradients:
        numbers = (mistake if mistake.needs(call) else RIGHT_BACKWARD).numbers(call, "upper_left")
        inputs = call.differentiable()
        return Gradients(**{name: x.to(inputs[name].dtype) for name, x in numbers.items()})

    return Kernel("made here", "made here", run, declared, backward=backward)


def failing(kernel: Kernel, dtype: str, shows: Callable[[Call], bool] = lambda call: True) -> Case:
    """The first case that the kernel fails, among those that can show its mistake."""
    for problem in SHOWING:
        case = case_named(f"gradients_stay_within_budget/{problem.format(dtype)}")
        if not shows(make_call(case.problem)):
            continue
        try:
            run_case(kernel, case)
        except Violation:
            return case
    raise AssertionError("no case fails")


def names(found: Diagnosis | None) -> tuple[str, ...]:
    return found.names if found else ()


def word(mistake: BackwardMistake) -> str:
    return f"{mistake.name}: {mistake.form}"


@pytest.mark.parametrize("problem", SHOWING)
def test_the_right_steps_are_the_reference(problem: str) -> None:
    call = make_call(Problem.parse(problem.format("float32")))
    right, truth = RIGHT_BACKWARD.numbers(call, "upper_left"), gradients(call)
    assert right.keys() == call.differentiable().keys()
    for name, found in right.items():
        torch.testing.assert_close(found, getattr(truth, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mistake", OWN, ids=word)
def test_every_mistake_is_named_first(mistake: BackwardMistake) -> None:
    kernel = mistaken(mistake, "float32")
    found = diagnose(kernel, failing(kernel, "float32", mistake.needs))
    assert names(found)[:1] == (mistake.name,)
    assert found is not None
    assert found.rule(Problem.parse(SHOWING[0].format("float32"))) == mistake.rule


@pytest.mark.parametrize("mistake", [m for m in FIRST_FORMS if m.name not in WITHIN_BUDGET], ids=word)
def test_every_mistake_is_named_first_in_16_bits(mistake: BackwardMistake) -> None:
    kernel = mistaken(mistake, "bfloat16")
    assert names(diagnose(kernel, failing(kernel, "bfloat16", mistake.needs)))[:1] == (mistake.name,)


@pytest.mark.parametrize("name", REFERENCE)
def test_a_mistake_of_the_forward_pass_is_named_in_the_backward_pass_alone(name: str) -> None:
    for mistake in (mistake for mistake in AGAIN if mistake.name == name):
        kernel = mistaken(mistake, "float32")
        assert names(diagnose(kernel, failing(kernel, "float32", mistake.needs)))[:1] == (name,), mistake.form


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("grad-query-unscaled", SHOWING[0]),
        ("grad-lse-negative", SHOWING[0]),
        ("grad-group-mean", SHOWING[1]),
        ("recompute-without-mask", SHOWING[4]),
    ],
)
def test_a_mistake_in_real_code_is_named_first(name: str, problem: str) -> None:
    mutant = mutant_named(name)
    case = case_named(f"gradients_stay_within_budget/{problem.format('float32')}")
    assert names(diagnose(kernel_of(mutant), case))[:1] == (mutant.mistake,)


def test_a_wrong_forward_pass_comes_before_its_gradients() -> None:
    right = mistaken(RIGHT_BACKWARD, "float32")

    def run(*tensors: torch.Tensor, **options: Any) -> Result:
        return right.run(*tensors, **options | {"is_causal": False})

    case = case_named(f"gradients_stay_within_budget/{SHOWING[0].format('float32')}")
    assert names(diagnose(replace(right, run=run), case)) == ("causal-dropped",)


def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


OFF_CATALOGUE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "noise": noise,
    "columns permuted": lambda x: x.flip(-1),
    "rows permuted": lambda x: x.roll(1, dims=2),
    "one per cent too large": lambda x: x * 1.01,
    "everything is NaN": lambda x: torch.full_like(x, torch.nan),
    "one element is infinite": lambda x: x.index_fill(3, torch.tensor([0]), torch.inf),
    "heads reversed": lambda x: x.flip(1) + x.roll(1, dims=2),
}


@pytest.mark.parametrize("fault", OFF_CATALOGUE)
@pytest.mark.parametrize("of", ["query", "key", "value"])
def test_a_fault_outside_the_catalogue_has_no_name(fault: str, of: str) -> None:
    right = mistaken(RIGHT_BACKWARD, "float32")
    assert right.backward is not None

    def backward(call: Call, result: Result) -> Gradients:
        given = right.backward(call, result)  # type: ignore[misc]
        return given._replace(**{of: OFF_CATALOGUE[fault](getattr(given, of))})

    kernel = replace(right, backward=backward)
    assert diagnose(kernel, failing(kernel, "float32")) is None


def part_of(name: str, share: float, dtype: str) -> Kernel:
    """A kernel whose gradients are off by a part of what the first mistake of a name makes of them."""
    mistake = next(mistake for mistake in BACKWARD if mistake.name == name)
    kernel = mistaken(mistake, dtype)

    def backward(call: Call, result: Result) -> Gradients:
        inputs, right = call.differentiable(), RIGHT_BACKWARD.numbers(call, "upper_left")
        wrong = mistake.numbers(call, "upper_left") if mistake.needs(call) else right
        return Gradients(**{i: x.lerp(wrong[i], share).to(inputs[i].dtype) for i, x in right.items()})

    return replace(kernel, backward=backward)


@pytest.mark.parametrize("share", [0.875, 1.125])
@pytest.mark.parametrize("name", ["grad-delta-missing", "grad-softcap-slope-missing"])
def test_a_mistake_that_is_made_in_part_has_no_name_in_16_bits(name: str, share: float) -> None:
    kernel = part_of(name, share, "bfloat16")
    shows = next(mistake.needs for mistake in BACKWARD if mistake.name == name)
    assert diagnose(kernel, failing(kernel, "bfloat16", shows)) is None


def test_half_a_gradient_is_not_taken_for_the_mean_over_a_batch_of_2() -> None:
    right = mistaken(RIGHT_BACKWARD, "bfloat16")

    def backward(call: Call, result: Result) -> Gradients:
        given = right.backward(call, result)  # type: ignore[misc]
        return given if given.alibi_slopes is None else given._replace(alibi_slopes=given.alibi_slopes / 2)

    problem = "b=2/hq=2/q=33/k=70/d=64/dtype=bfloat16/alibi=symmetric.learned/grad=lse/seed=1"
    kernel = replace(right, backward=backward)
    assert diagnose(kernel, case_named(f"gradients_stay_within_budget/{problem}")) is None


def test_half_the_scale_is_not_taken_for_that_of_a_head_dim_padded_to_four_times_as_much() -> None:
    again = Steps(scale=lambda call: forward.scale(call) / 2)
    half = BackwardSteps(again=again, query_scale=scale_of_call, key_scale=scale_of_call)
    kernel = mistaken(replace(RIGHT_BACKWARD, back=half), "float32")
    assert diagnose(kernel, case_named("gradients_match_golden/gradients-bias-float32")) is None


def test_a_small_gradient_is_not_taken_for_0() -> None:
    kernel = mistaken(next(m for m in BACKWARD if m.name == "grad-slopes-without-distance"), "float16")
    found = diagnose(kernel, case_named("gradients_match_golden/gradients-slopes-causal-grouped-float16"))
    assert names(found) == ("grad-slopes-without-distance",)


def test_a_diagnosis_is_given_again_as_far_as_it_fits() -> None:
    other, mistake = (next(m for m in BACKWARD if m.name == name) for name in ("grad-unscaled", "grad-delta-missing"))
    kernel = mistaken(mistake, "float32")
    session_of(kernel, BackwardSession).found.append(Diagnosis((other, mistake)))
    assert names(diagnose(kernel, failing(kernel, "float32"))) == ("grad-delta-missing",)


@pytest.mark.parametrize("base", ["closed_form", "recompute"])
@pytest.mark.parametrize("problem", SHOWING[:5])
def test_an_honest_kernel_has_no_name(base: str, problem: str) -> None:
    kernel = resolve(f"{Path(__file__).parent / 'honest' / f'{base}.py'}:attention")
    assert diagnose(kernel, case_named(f"gradients_stay_within_budget/{problem.format('float32')}")) is None


def test_every_mistake_breaks_a_rule_that_exists_and_every_form_is_told_apart() -> None:
    assert {mistake.rule for mistake in BACKWARD} <= set(all_rules())
    assert len({(mistake.name, mistake.form) for mistake in BACKWARD}) == len(BACKWARD)
    assert not {mistake.name for mistake in BACKWARD} & {mistake.name for mistake in CATALOGUE}
    assert not [mistake.name for mistake in BACKWARD if mistake.sentence.endswith(".")]
    assert all(mistake.back != BackwardSteps() for mistake in BACKWARD)


def test_steps_are_all_replaceable() -> None:
    replaced = {
        f.name
        for mistake in BACKWARD
        for f in fields(BackwardSteps)
        if getattr(mistake.back, f.name) != getattr(BackwardSteps(), f.name)
    }
    assert replaced == {f.name for f in fields(BackwardSteps)}
