"""Diagnosis names the mistake that a kernel makes, for every mistake of the catalogue and for real code with a planted
one; it names nothing for honest kernels and for faults that the catalogue does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import case_named
from attnspec.conformance.diagnosis import diagnose as diagnosing
from attnspec.conformance.diagnosis.battery import battery
from attnspec.conformance.diagnosis.broken import broken_rule
from attnspec.conformance.diagnosis.diagnose import diagnose
from attnspec.conformance.diagnosis.diagnosis import DIALECTS, Diagnosis
from attnspec.conformance.diagnosis.evidence import ForwardEvidence
from attnspec.conformance.diagnosis.mistake import Mistake
from attnspec.conformance.diagnosis.mistakes import CATALOGUE
from attnspec.conformance.diagnosis.steps import Steps, attend
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.reference.attention import answer
from attnspec.spec.call import Call, Result
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.problem import Problem
from attnspec.spec.rules import all_rules

pytestmark = pytest.mark.usefixtures("one_thread")
HONEST = Path(__file__).parent / "honest"
SHOWING = (  # problems on one of which every mistake shows; {} is a dtype
    "b=3/q=37/k=150/d=76/dv=20/dtype={}/seed=1",
    "b=2/hq=2/q=37/k=121/d=64/dtype={}/scores=4/seed=1",
    "b=2/hq=2/q=33/k=70/d=64/dtype={}/causal/seed=1",
    "b=2/hq=3/q=45/k=77/d=64/dtype={}/mask=bool.bhqk.empty_rows/seed=1",
    "b=2/hq=2/q=45/k=45/d=64/dtype={}/mask=bool.bhqk.random/causal/seed=1",
    "b=2/hq=2/q=45/k=77/d=64/dtype={}/mask=float.bhqk.random/seed=1",
    "b=2/hq=2/q=45/k=45/d=64/dtype={}/mask=float.hqk.empty_rows/seed=1",
    "b=2/hq=6/hkv=2/q=19/k=77/d=64/dtype={}/seed=1",
    "b=2/hq=6/hkv=2/q=19/k=77/d=64/dtype={}/mask=bool.bhqk.random/seed=1",
    "hq=2/q=19/k=77/d=64/dtype={}/scale=-0.7/seed=1",
    "hq=2/q=19/k=77/d=64/dtype={}/scale=0/seed=1",
    "b=2/hq=2/q=33/k=33/d=64/dtype={}/scores=1000/causal/seed=1",
    "b=2/hq=2/q=45/k=45/d=64/dtype={}/mask=float.bhqk.low/causal/seed=1",
)
SHOWING_MODIFIED = (  # the same, for options that no default claims
    "b=2/hq=2/q=33/k=70/d=64/dtype={}/window=7.2/seed=1",
    "b=2/hq=2/q=33/k=70/d=64/dtype={}/causal/window=7.2/seed=1",
    "b=2/hq=2/q=33/k=70/d=64/dtype={}/softcap=1.5/scores=4/seed=1",
    "b=2/hq=2/q=33/k=70/d=64/dtype={}/mask=float.bhqk.random/softcap=1.5/scores=4/seed=1",
    "b=2/hq=6/hkv=2/q=33/k=70/d=64/dtype={}/sinks/seed=1",
    "b=2/hq=6/hkv=2/q=33/k=70/d=64/dtype={}/alibi/seed=1",
    "b=3/hq=2/q=5/k=70/d=64/dtype={}/lengths=ragged/seed=1",
    "b=3/hq=2/q=5/k=70/d=64/dtype={}/causal=lower_right/lengths=ragged/seed=1",
)
MODIFIERS = ("window_size", "softcap", "sinks", "alibi_slopes", "key_lengths")  # which no default claims
LOWER_RIGHT = {"lengths-corner-of-storage"}  # mistakes that only a kernel of this corner can make
HARMLESS = {  # in a 16-bit dtype: an honest kernel may do so, or the store of the output hides most of it
    "sum-in-bfloat16",
    "weights-in-bfloat16",
    "weights-in-float16",
    "inputs-in-bfloat16",
    "output-in-bfloat16",
    "inputs-in-float16",
    "output-in-float16",
    "sum-in-float16",
    "scores-in-float16",
    "lse-in-float16",
}
WITHIN_BUDGET = {("bfloat16", name) for name in HARMLESS}
BY_NAME = {mistake.name: mistake for mistake in reversed(CATALOGUE)}  # the first form of each


def kernel_of(
    run: Callable[..., Any], dtype: str = "float32", more: tuple[str, ...] = (), corner: str = "upper_left"
) -> Kernel:
    declared = Capabilities(features=(*Capabilities().features, *more), dtypes=(dtype,), causal_alignment=corner)
    return Kernel("made here", "made here", run, declared, inferred=True)


def mistaken(mistake: Mistake, dtype: str) -> Kernel:
    """A kernel that takes the mistaken steps and stores what comes of them."""
    corner = "lower_right" if mistake.name in LOWER_RIGHT else "upper_left"

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
        call = Call(query, key, value, **options, alibi_alignment=corner)
        output, lse, _ = attend(call, corner, mistake.steps if mistake.needs(call) else Steps()).result
        assert lse is not None
        return Result(output.to(query.dtype), lse.float())

    return kernel_of(run, dtype, MODIFIERS, corner)


def mutant(*changes: tuple[str, str], base: str = "plain") -> Kernel:
    """An honest kernel with pieces of its text replaced."""
    text = (HONEST / f"{base}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    space: dict[str, Any] = {}
    exec(text, space)
    return kernel_of(space["attention"])


def failing(kernel: Kernel, dtype: str = "float32", shows: Callable[[Call], bool] = lambda call: True) -> Case:
    """The first case that the kernel fails, among those that can show its mistake."""
    for problem in (*SHOWING, *SHOWING_MODIFIED):
        case = case_named(f"lse_stays_within_budget/{problem.format(dtype)}")
        if not shows(make_call(case.problem).but(return_lse=True)):
            continue
        try:
            run_case(kernel, case)
        except Violation:
            return case
        except NotSupported:
            continue
    raise AssertionError("no case fails")


def names(found: Diagnosis | None) -> tuple[str, ...]:
    return found.names if found else ()


def test_every_mistake_breaks_a_rule_that_exists() -> None:
    for text in ("q=3/k=5/d=8/causal/mask=bool.qk.random", "q=3/k=5/d=8/causal=lower_right/mask=float.qk.random"):
        problem = Problem.parse(text)
        assert {broken_rule(mistake, problem) for mistake in CATALOGUE} <= set(all_rules())


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("causal-inverted", "q=3/k=5/d=8/causal=lower_right", "mask.causal-lower-right"),
        ("mask-dropped", "q=3/k=5/d=8/mask=float.qk.random", "mask.additive"),
        ("mask-dropped", "q=3/k=5/d=8/mask=bool.qk.random", "mask.bool"),
        ("mask-dropped-with-causal", "q=3/k=5/d=8/causal/mask=bool.qk.random", "mask.combine"),
        ("scale-missing", "q=3/k=5/d=8", "attention.scale-default"),
        ("scale-absolute", "q=3/k=5/d=8/scale=-1", "attention.scale-explicit"),
        ("lse-base-2", "q=3/k=5/d=8", "softmax.lse-base"),
    ],
)
def test_a_mistake_breaks_the_most_telling_rule(name: str, text: str, rule: str) -> None:
    assert broken_rule(BY_NAME[name], Problem.parse(text)) == rule


def test_the_catalogue_is_large_and_every_form_is_told_apart() -> None:
    assert len(BY_NAME) >= 40
    assert len({(mistake.name, mistake.form) for mistake in CATALOGUE}) == len(CATALOGUE)
    assert all(mistake.steps != Steps() for mistake in CATALOGUE)
    assert not [mistake.name for mistake in CATALOGUE if mistake.sentence.endswith(".")]


@pytest.mark.parametrize("problem", SHOWING)
@pytest.mark.parametrize("corner", ["upper_left", "lower_right"])
def test_the_right_steps_are_the_reference(problem: str, corner: str) -> None:
    call = make_call(Problem.parse(problem.format("float32")))
    right, truth = attend(call, corner, Steps()).result, answer(call, corner)
    torch.testing.assert_close(right.output, truth.output, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(right.lse, truth.lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("problem", SHOWING)
def test_the_budget_of_the_right_steps_is_the_error_budget(problem: str) -> None:
    call = make_call(Problem.parse(problem.format("bfloat16")))
    result = answer(call)
    found, expected = ForwardEvidence(call, result, "upper_left", "fused").budget, error_budget(call)
    torch.testing.assert_close(
        found.output, expected.output, rtol=1e-2, atol=0
    )  # weights that underflow are not counted
    torch.testing.assert_close(found.lse, expected.lse, rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(dtype, name) for dtype in ("float32", "bfloat16") for name in BY_NAME if (dtype, name) not in WITHIN_BUDGET],
)
def test_every_mistake_is_named_first(dtype: str, name: str) -> None:
    kernel = mistaken(BY_NAME[name], dtype)
    case = failing(kernel, dtype, BY_NAME[name].needs)
    assert names(diagnose(kernel, case))[:1] == (name,)


TRIANGLE, TOTAL = "torch.arange(q_len)[:, None]", "total.masked_fill(total == 0, 1.0)"
DEFAULT = "scale = head_dim**-0.5 if scale is None else scale"
MUTANTS = {
    "causal-dropped": [("if is_causal:", "if False:")],
    "causal-other-corner": [(TRIANGLE, f"{TRIANGLE} + k_len - q_len")],
    "causal-sees-next-key": [(TRIANGLE, f"{TRIANGLE} + 1")],
    "causal-dropped-with-mask": [("if is_causal:", "if is_causal and attn_mask is None:")],
    "mask-inverted": [("visible & attn_mask", "visible & ~attn_mask")],
    "mask-bias-before-scale": [("+ attn_mask.to(wide)", "+ scale * attn_mask.to(wide)")],
    "finite-sentinel": [("masked_fill(~visible, -torch.inf)", "masked_fill(~visible, -1e9)")],
    "empty-row-nan": [(TOTAL, "total")],
    "heads-tiled": [("repeat_interleave(group, dim=1)", "repeat(1, group, 1, 1)")],
    "scale-missing": [("scores = scores * scale", "")],
    "scale-twice": [("scores * scale", "scores * scale * scale")],
    "scale-absolute": [("scores * scale", "scores * abs(scale)")],
    "scale-zero-is-default": [("if scale is None", "if not scale")],
    "scale-explicit-ignored": [(DEFAULT, "scale = head_dim**-0.5")],
    "softmax-base-2": [("torch.exp(", "torch.exp2(")],
    "softmax-unnormalised": [(f"weights / {TOTAL}", "weights")],
    "lse-base-2": [("total)).squeeze(-1)", "total)).squeeze(-1) / 0.6931471805599453")],
    "lse-without-maximum": [("top + torch.log(total)", "torch.log(total)")],
    "scores-in-bfloat16": [("scores * scale", "(scores * scale).bfloat16().to(wide)")],
    "weights-in-bfloat16": [("weights @ value", "weights.bfloat16().to(wide) @ value")],
    "weights-in-float8": [("weights @ value", "weights.to(torch.float8_e4m3fn).to(wide) @ value")],
    "batch-0-keys": [("key.repeat", "key[:1].repeat"), ("value.repeat", "value[:1].repeat")],
}
ONE_PASS = {
    "tail-dropped": [("range(0, stop, K_TILE)", "range(0, stop // K_TILE * K_TILE, K_TILE)")],
    "rescale-missing": [("acc * rescale", "acc")],
    "softmax-base-2": [("torch.exp(", "torch.exp2(")],
    "causal-by-whole-tiles": [("keys > rows[:, None]", "keys // K_TILE > rows[:, None] // K_TILE")],
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_in_real_code_is_named_first(name: str) -> None:
    kernel = mutant(*MUTANTS[name])
    assert names(diagnose(kernel, failing(kernel)))[:1] == (name,)


@pytest.mark.parametrize("name", ONE_PASS)
def test_a_mistake_in_one_pass_code_is_named_first(name: str) -> None:
    kernel = mutant(*ONE_PASS[name], base="tiled")
    assert names(diagnose(kernel, failing(kernel)))[:1] == (name,)


def off(change: Callable[[torch.Tensor], torch.Tensor]) -> Kernel:
    """An honest kernel whose output is changed."""
    honest = mutant()

    def run(*tensors: torch.Tensor, return_lse: bool = False, **options: Any) -> Any:
        output, lse = honest.run(*tensors, return_lse=True, **options)
        output = change(output.clone())
        return (output, lse) if return_lse else output

    return kernel_of(run)


def garbage_row(x: torch.Tensor) -> torch.Tensor:
    x[:, :, x.shape[2] // 2] = 7.25
    return x


def noise(size: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x + size * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))


OFF_CATALOGUE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one row is garbage": garbage_row,
    "large noise": noise(1.0),
    "small noise": noise(1e-5),
    "columns permuted": lambda x: x.flip(-1),
    "rows permuted": lambda x: x.roll(1, dims=2),
    "one per cent too large": lambda x: x * 1.01,
    "an offset": lambda x: x + 0.125,
    "wrong at one length": lambda x: x.flip(-1) if x.shape[2] == 37 else x,
    "everything is 0": torch.zeros_like,
    "everything is NaN": lambda x: torch.full_like(x, torch.nan),
    "one element is infinite": lambda x: x.index_fill(3, torch.tensor([0]), torch.inf),
    "heads reversed": lambda x: x.flip(1) + x.roll(1, dims=2),
}


@pytest.mark.parametrize("fault", OFF_CATALOGUE)
def test_a_fault_outside_the_catalogue_has_no_name(fault: str) -> None:
    kernel = off(OFF_CATALOGUE[fault])
    assert diagnose(kernel, failing(kernel)) is None


@pytest.mark.parametrize("base", ["plain", "tiled"])
@pytest.mark.parametrize("problem", SHOWING)
def test_an_honest_kernel_has_no_name(base: str, problem: str) -> None:
    kernel = mutant(base=base)
    case = case_named(f"output_stays_within_budget/{problem.format('float32')}")
    assert diagnose(kernel, case) is None
    call = make_call(case.problem)
    result = kernel(call)
    spoiled = result.output.clone()
    spoiled[0, 0, 0, 0] += 1e-3
    assert diagnose(kernel, case, [(call, Result(spoiled))]) is None


def test_a_mistake_of_some_calls_alone_says_where_it_is_not() -> None:
    kernel = mutant(("if is_causal:", "if is_causal and k_len != 150:"))
    case = case_named("output_stays_within_budget/b=2/hq=2/q=37/k=150/d=64/causal/seed=1")
    found = diagnose(kernel, case)
    assert found is not None
    assert found.names == ("causal-dropped",)
    assert found.line.startswith("causal-dropped: is_causal is ignored; but not in ")


def test_a_kernel_that_breaks_in_the_battery_is_still_diagnosed() -> None:
    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        if key.shape[2] != 150:
            raise RuntimeError("one length alone")
        return torch.softmax(query @ key.mT, -1) @ value

    case = case_named(f"output_stays_within_budget/{SHOWING[0].format('float32')}")
    assert names(diagnose(kernel_of(run), case)) == ("scale-missing",)


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(diagnosing, "_diagnose", broken)
    assert diagnose(mutant(), case_named(f"output_stays_within_budget/{SHOWING[0].format('float32')}")) is None


def test_the_battery_is_run_once_a_kernel() -> None:
    calls = [0]
    wrong = mistaken(BY_NAME["causal-other-corner"], "float32")

    def run(*tensors: torch.Tensor, **options: Any) -> Any:
        calls[0] += 1
        return wrong.run(*tensors, **options)

    kernel = replace(wrong, run=run)
    case = case_named(f"output_stays_within_budget/{SHOWING[2].format('float32')}")
    first = diagnose(kernel, case)
    calls[0] = 0
    assert diagnose(kernel, case) == first
    assert calls[0] == 1


def test_the_battery_keeps_to_what_the_kernel_declares() -> None:
    capabilities = Capabilities(
        features=("is_causal", "attn_mask"), dtypes=("bfloat16",), refuses=(("attn_mask", "is_causal"),)
    )
    case = Problem.parse("q=33/k=70/d=64/dtype=bfloat16/causal")
    problems = list(battery(case, capabilities))
    assert problems
    assert all(capabilities.lacks(problem) is None and problem.dtype == "bfloat16" for problem in problems)


def test_the_line_names_the_mistake_and_its_form() -> None:
    kernel = mistaken(BY_NAME["tail-dropped"], "float32")
    found = diagnose(kernel, failing(kernel))
    assert found is not None
    assert found.line == "tail-dropped: keys beyond the last whole tile are dropped (tiles of 16)"


def test_a_declared_corner_is_the_right_one() -> None:
    wrong = mutant((TRIANGLE, f"{TRIANGLE} + k_len - q_len + 1"))
    kernel = replace(wrong, capabilities=replace(wrong.capabilities, causal_alignment="lower_right"))
    case = case_named("output_stays_within_budget/b=2/hq=2/q=33/k=70/d=64/causal=lower_right/seed=1")
    assert names(diagnose(kernel, case)) == ("causal-sees-next-key",)


@pytest.mark.parametrize(
    ("name", "dialect"),
    [("causal-other-corner", "causal_alignment, by --causal-alignment"), ("causal-sees-next-key", None)],
)
def test_a_mistake_that_is_a_dialect_says_what_to_declare(name: str, dialect: str | None) -> None:
    kernel = mistaken(BY_NAME[name], "float32")
    found = diagnose(kernel, failing(kernel))
    assert found is not None
    assert found.dialect == dialect


def test_dialects_are_mistakes_of_the_catalogue() -> None:
    assert set(DIALECTS) <= set(BY_NAME)


def test_steps_are_all_replaceable() -> None:
    replaced = {
        f.name for m in CATALOGUE for f in fields(Steps) if getattr(m.steps, f.name) != getattr(Steps(), f.name)
    }
    assert replaced == {f.name for f in fields(Steps)}


def test_a_planted_kernel_of_the_suite_is_named() -> None:
    kernel = resolve(f"{HONEST.parent / 'kernels' / 'drops_mask.py'}:attention")
    case = case_named("visible_set_is_exact/b=2/hq=4/hkv=2/q=33/k=70/d=64/mask=bool.bhqk.empty_rows/causal/seed=1")
    assert names(diagnose(kernel, case)) == ("mask-dropped-with-causal",)
