"""The dialects of ALiBi: a corner of its own, slopes that are learned; in problems, capabilities and kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mutants import mutant_named
from mutants.house import HONEST, kernel_of

from attnspec.conformance.catalogue import case_named, cases
from attnspec.conformance.checks.gradients import forward_and_back
from attnspec.conformance.diagnosis.diagnose import diagnose
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.running import run_case
from attnspec.conformance.show import facts_of
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.implementations.cuda_emulator.description import describe
from attnspec.implementations.torch_eager import alibi_lower_right, backend
from attnspec.spec.alibi import ALIBI_FORMS, SLOPE_SHAPES, Alibi
from attnspec.spec.call import Call, Gradients, Result
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError
from attnspec.spec.problem import CAUSAL_ALIGNMENTS, Problem
from attnspec.spec.window import Window

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY = tuple(FEATURES)
WIDE = "lse_stays_within_budget/b=2/hq=4/q=33/k=70/d=64"
LEARNED = Problem.parse("b=2/hq=2/q=5/k=9/d=8/alibi=symmetric.learned/grad")


# ---------------------------------------------------------------- problems


@given(
    causal=st.sampled_from((None, *CAUSAL_ALIGNMENTS)),
    windowed=st.sampled_from((None, *CAUSAL_ALIGNMENTS)),
    alibi=st.builds(
        Alibi,
        st.sampled_from(ALIBI_FORMS),
        st.sampled_from((None, *CAUSAL_ALIGNMENTS)),
        st.sampled_from(SLOPE_SHAPES),
        st.booleans(),
    ),
)
def test_a_problem_keeps_the_corner_of_its_alibi(causal: str | None, windowed: str | None, alibi: Alibi) -> None:
    window = Window(3, 2, None if causal else windowed) if windowed else None
    problem = Problem(q_len=5, k_len=9, head_dim=8, causal=causal, window=window, alibi=alibi, grad="output")
    assert problem.alibi is not None
    assert problem.alibi.corner == (alibi.corner or problem.corner)
    assert Problem.parse(str(problem)) == problem
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("causal=lower_right/alibi", "alibi=symmetric.lower_right"),
        ("causal=lower_right/alibi=signed.upper_left", "alibi=signed.upper_left"),
        ("causal/alibi=symmetric.lower_right", "alibi=symmetric.lower_right"),
        ("alibi=symmetric.upper_left", "alibi=symmetric"),
        ("alibi=signed.h", "alibi=signed"),
        ("alibi=signed.bh.learned/grad", "alibi=signed.bh.learned"),
    ],
)
def test_a_string_says_the_corner_where_it_must(text: str, word: str) -> None:
    assert word in str(Problem.parse(f"q=5/k=9/d=8/{text}")).split("/")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alibi=cubic", "use symmetric or signed"),
        ("alibi=symmetric.learned.bh", "use symmetric or signed"),
        ("alibi=symmetric.middle", "use symmetric or signed"),
        ("alibi=symmetric.learned", "alibi is learned and grad is None"),
    ],
)
def test_a_bad_word_is_an_input_error_of_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        Problem.parse(f"q=5/k=9/d=8/{text}")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_inputs_have_the_shape_that_the_problem_says() -> None:
    each = make_call(LEARNED.but(alibi=Alibi(shape="bh")))
    assert each.alibi_slopes is not None
    assert each.alibi_slopes.shape == (2, 2)
    assert list(each.differentiable()) == ["query", "key", "value"]
    assert list(make_call(LEARNED).differentiable()) == ["query", "key", "value", "alibi_slopes"]
    assert "learned_slopes" not in make_call(LEARNED).options()


def test_a_case_is_shown_in_the_words_of_its_problem() -> None:
    shown = facts_of(f"{WIDE}/window=3.2.lower_right/alibi=symmetric.upper_left/seed=1")["problem"]
    assert "alibi=symmetric.upper_left" in shown
    assert "window=3.2.lower_right" in shown


# ---------------------------------------------------------------- capabilities


def declared(causal: str, alibi: str | None, **more: Any) -> Capabilities:
    return Capabilities(features=EVERY, causal_alignment=causal, alibi_alignment=alibi, **more)


@pytest.mark.parametrize("causal", CAUSAL_ALIGNMENTS)
@pytest.mark.parametrize("alibi", [None, *CAUSAL_ALIGNMENTS])
def test_a_problem_of_the_declared_corners_alone_is_supported(causal: str, alibi: str | None) -> None:
    capabilities = declared(causal, alibi)
    own = alibi or causal
    for diagonal in CAUSAL_ALIGNMENTS:
        problem = Problem.parse(f"q=5/k=9/d=8/causal={causal}/alibi=symmetric.{diagonal}")
        said = capabilities.lacks(problem)
        assert said == (None if diagonal == own else f"the case measures alibi from {diagonal}, declared {own}")
        assert capabilities.lacks(problem.but(k_len=5)) is None  # where the two are one
    fitted = capabilities.fitted(Problem.parse("q=5/k=9/d=8/causal/window=3.2/alibi=signed"))
    assert str(fitted) == str(Problem.parse(f"q=5/k=9/d=8/causal={causal}/window=3.2/alibi=symmetric.{own}"))
    assert Capabilities.from_json(json.loads(json.dumps(capabilities.to_json()))) == capabilities


def test_a_form_that_is_not_declared_is_told() -> None:
    signed = Problem.parse("q=5/k=5/d=8/alibi=signed")
    said = declared("upper_left", None).lacks(signed)
    assert said == "the case has alibi_form signed, declared symmetric"
    assert declared("upper_left", None, alibi_form="signed").lacks(signed) is None


def test_an_unknown_corner_is_told() -> None:
    with pytest.raises(InputError, match="alibi_alignment has 'middle'; use one of upper_left, lower_right"):
        Capabilities(alibi_alignment="middle")


def test_a_gradient_of_slopes_is_declared_by_name() -> None:
    without = Capabilities(features=tuple(name for name in EVERY if name != "grad_alibi_slopes"))
    assert "grad_alibi_slopes" not in Capabilities().features
    assert without.lacks(LEARNED) == f"grad_alibi_slopes ({FEATURES['grad_alibi_slopes']}) is not declared"
    assert without.lacks(LEARNED.but(alibi=Alibi())) is None
    assert Capabilities(features=EVERY).lacks(LEARNED) is None


def test_a_launch_description_says_the_corner(tmp_path: Path) -> None:
    text = """
[attention]
grid = ["q_len"]
block = [32]
arguments = ["query", "key", "value", "output", "alibi_slopes", "is_causal", "q_len", "k_len"]
capabilities = {causal_alignment = "lower_right", alibi_alignment = "upper_left"}
"""
    (tmp_path / "kernel.toml").write_text(text, encoding="utf-8")
    capabilities = describe(tmp_path / "kernel.cu", "attention").capabilities
    assert (capabilities.causal_alignment, capabilities.alibi_corner) == ("lower_right", "upper_left")
    (tmp_path / "kernel.toml").write_text(text.replace('"upper_left"', '"middle"'), encoding="utf-8")
    with pytest.raises(InputError, match="alibi_alignment"):
        describe(tmp_path / "kernel.cu", "attention")


def test_a_bare_callable_is_declared_on_the_command_line() -> None:
    target = f"{HONEST}/alibi_learned.py:attention"
    kernel = resolve(target, causal_alignment="lower_right", alibi_alignment="upper_left")
    assert (kernel.capabilities.causal_alignment, kernel.capabilities.alibi_corner) == ("lower_right", "upper_left")
    assert resolve(target).capabilities.alibi_alignment is None
    with pytest.raises(InputError, match="declares its capabilities: leave out --alibi-alignment"):
        resolve(f"{HONEST}/alibi_mixed.py:attention", alibi_alignment="upper_left")


# ---------------------------------------------------------------- kernels


def failing(kernel: Kernel) -> list[str]:
    """The budget cases with ALiBi that the kernel fails."""
    found = []
    for case in cases("quick"):
        if case.check in ("output_stays_within_budget", "lse_stays_within_budget") and case.problem.alibi:
            try:
                run_case(kernel, case)
            except Violation:
                found.append(case.id)
            except NotSupported:
                pass
    return found


@pytest.mark.parametrize("made", [backend, alibi_lower_right], ids=["upper_left", "lower_right"])
def test_eager_attention_runs_with_either_corner(made: Any) -> None:
    name = "backend" if made is backend else "alibi_lower_right"
    kernel = resolve(f"attnspec.implementations.torch_eager:{name}")
    assert failing(kernel) == []
    other = {"upper_left": "lower_right", "lower_right": "upper_left"}[kernel.capabilities.alibi_corner]
    turned = replace(kernel, capabilities=replace(kernel.capabilities, alibi_alignment=other))
    assert failing(turned) != []


@pytest.mark.parametrize(("name", "own"), [("alibi_mixed", "upper left"), ("alibi_from_the_end", "lower right")])
def test_a_kernel_of_two_corners_is_accused_without_its_declaration(name: str, own: str) -> None:
    kernel = resolve(f"{HONEST}/{name}.py:attention")
    assert failing(kernel) == []
    undeclared = replace(kernel, capabilities=replace(kernel.capabilities, alibi_alignment=None))
    causal = undeclared.capabilities.causal_alignment
    case = case_named(f"{WIDE}/causal={causal}/alibi=symmetric.{causal}/seed=1")  # the lse shows a shift of all scores
    with pytest.raises(Violation):
        run_case(undeclared, case)
    found = diagnose(undeclared, case)
    assert found is not None
    assert found.line == f"alibi-other-corner: alibi is measured from {own} (declared {causal.replace('_', ' ')})"
    assert found.dialect == "alibi_alignment, by --alibi-alignment"
    assert found.rule(case.problem) == "alibi.offset"


@pytest.mark.parametrize("name", ["alibi-from-the-causal-lower-right", "alibi-from-the-causal-upper-left"])
def test_a_kernel_that_counts_from_the_causal_corner_is_found_both_ways(name: str) -> None:
    kernel = kernel_of(mutant_named(name))
    causal, own = kernel.capabilities.causal_alignment, kernel.capabilities.alibi_corner
    case = case_named(f"{WIDE}/causal={causal}/alibi=symmetric.{own}/seed=1")
    with pytest.raises(Violation):
        run_case(kernel, case)
    found = diagnose(kernel, case)
    assert found is not None
    assert found.names == ("alibi-other-corner",)


def test_a_kernel_without_a_gradient_of_slopes_is_told_so_and_not_accused() -> None:
    kernel = resolve(f"{HONEST}/alibi_flash.py:attention")
    assert forward_and_back(kernel, LEARNED.but(alibi=Alibi())) < 1
    with pytest.raises(NotSupported, match="no gradient of alibi_slopes comes back") as caught:
        forward_and_back(kernel, LEARNED)
    assert not caught.value.declared
    promised = replace(kernel, inferred=False)
    with pytest.raises(Violation, match="no gradient of alibi_slopes comes back") as broken:
        forward_and_back(promised, LEARNED)
    assert broken.value.rule == "contract.declared-runs"


def test_a_method_gives_the_gradient_by_name_or_in_order() -> None:
    honest = resolve(f"{HONEST}/alibi_learned.py:attention")

    def by_name(call: Call, result: Result) -> Gradients:
        return honest.gradients(call)[1]

    def in_order(call: Call, result: Result) -> tuple[torch.Tensor | None, ...]:
        return tuple(x for x in by_name(call, result) if x is not None)

    def without(call: Call, result: Result) -> Gradients:
        return by_name(call, result)._replace(alibi_slopes=None)

    for method in (by_name, in_order):
        assert forward_and_back(replace(honest, backward=method), LEARNED) < 1
    with pytest.raises(NotSupported, match="no gradient of alibi_slopes"):
        forward_and_back(replace(honest, backward=without), LEARNED)
