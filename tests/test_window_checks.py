"""Checks of windows: each finds the fault that it is there for, and passes honest kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from findings import findings
from mutants import mutant_named
from mutants.house import HONEST, kernel_of

from attnspec.conformance.catalogue import case_named, cases
from attnspec.conformance.checks.probes import broken_window_rule
from attnspec.conformance.covering import (
    array,
    coverage,
    is_modifier,
    modified,
    pairs_of,
    pairs_of_modifiers,
    row_of,
)
from attnspec.conformance.diagnosis.diagnose import diagnose
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.reference import masks
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Mask, Problem
from attnspec.spec.window import Window

BOUNDS, CORNER, CAUSAL, COMBINE = (f"window.{rule}" for rule in ("bounds", "corner", "causal", "combine"))
HONEST_NAMES = ("plain", "lower_right", "flash")
FOUND = [  # check, mutant, the rule that must be named
    ("visible_set_is_exact", "window-ignored", BOUNDS),
    ("visible_set_is_exact", "window-counts-its-own-key", BOUNDS),
    ("visible_set_is_exact", "window-sides-swapped", BOUNDS),
    ("visible_set_is_exact", "window-drops-causal", CAUSAL),
    ("visible_set_is_exact", "window-causal-right-kept", CAUSAL),
    ("visible_set_is_exact", "window-at-the-lower-right", CORNER),
    ("visible_set_is_exact", "window-corner-at-the-end-of-the-storage", CORNER),
    ("visible_set_is_exact", "window-drops-the-mask", COMBINE),
    ("visible_set_is_exact", "window-skips-a-tile-too-early", BOUNDS),
    ("visible_set_is_exact", "window-first-tile-unmasked", BOUNDS),
    ("visible_set_is_exact", "window-empty-row-mean", "mask.fully-masked-row"),
    ("gradients_read_the_visible_set", "window-ignored-in-backward", "backward.matches-forward"),
    ("gradients_read_the_visible_set", "window-rows-by-the-forward-bounds", "backward.matches-forward"),
    ("gradients_stay_within_budget", "window-swapped-in-backward", "backward.matches-forward"),
    ("a_window_equals_its_mask", "window-left-one-short", BOUNDS),
    ("a_window_beyond_all_keys_is_none", "window-longer-than-the-keys-wraps", "window.unbounded"),
    ("a_window_beyond_all_keys_is_none", "window-added-in-32-bits", "window.unbounded"),
    ("impossible_windows_are_refused", "window-below-minus-1-is-none", "window.range"),
    ("impossible_windows_are_refused", "window-checked-on-the-left-only", "window.range"),
    ("hidden_keys_have_no_influence", "window-hides-by-a-large-number", "mask.hidden-values"),
    ("unseen_keys_have_no_influence", "window-hides-by-a-large-number", "mask.hidden-values"),
    ("output_matches_golden", "window-right-one-short", "accuracy.output-within-budget"),
    ("options_combine", "window-ignored-where-grouped", "accuracy.output-within-budget"),
]


pytestmark = pytest.mark.usefixtures("one_thread")


def rules_named(kernel: Kernel, check: str) -> Iterator[str]:
    """Run a check's quick cases that have a window and yield the rules that fail."""
    found = findings(kernel, lambda case: case.check == check and case.problem.window is not None)
    return (violation.rule for _, violation in found)


@pytest.mark.parametrize(("check", "mutant", "rule"), FOUND)
def test_the_check_finds_the_fault_and_names_its_rule(check: str, mutant: str, rule: str) -> None:
    assert rule in rules_named(kernel_of(mutant_named(mutant)), check)


@pytest.mark.parametrize("check", sorted({check for check, _, _ in FOUND}))
@pytest.mark.parametrize("name", HONEST_NAMES)
def test_the_check_passes_an_honest_kernel(name: str, check: str) -> None:
    assert list(rules_named(resolve(f"{HONEST / f'window_{name}.py'}:attention"), check)) == []


@pytest.mark.parametrize("name", HONEST_NAMES)
def test_honest_kernels_give_the_mean_of_the_keys_in_the_window(name: str) -> None:
    """Equal scores, values 1 to 40, 40 rows: with (2, 0) row 0 sees 1, row 1 sees 1 and 2, row i the last three."""
    kernel = resolve(f"{HONEST / f'window_{name}.py'}:attention")
    value = torch.arange(1.0, 41.0)[None, None, :, None].expand(1, 1, 40, 4).contiguous()
    output = kernel.run(torch.zeros(1, 1, 40, 4), value, value, window_size=(2, 0))
    assert output[0, 0, :, 0].tolist() == pytest.approx([1.0, 1.5, *(float(i) for i in range(2, 40))])
    with pytest.raises(ValueError, match="window"):
        kernel.run(value, value, value, window_size=(-2, 0))


def seen(text: str) -> torch.Tensor:
    """Rows of 0 and 1: (1, 1, rows, keys)."""
    return torch.tensor([[[[c == "1" for c in row] for row in text.split()]]])


@pytest.mark.parametrize(
    ("options", "read", "rule"),
    [
        ("window=1.0", "1111 1111 1111", BOUNDS),
        ("window=1.0", "1000 0100 0010", BOUNDS),
        ("window=1.0", "1100 0110 0011", CORNER),
        ("window=0.1/causal", "1100 0110 0011", CAUSAL),
        ("window=1.0/causal", "1000 1100 1110", BOUNDS),
        ("window=1.1/mask=bool.qk.random", "1100 1110 0111", COMBINE),
    ],
)
def test_a_wrong_visible_set_names_its_rule(options: str, read: str, rule: str) -> None:
    problem = Problem.parse(f"q=3/k=4/d=2/{options}")
    keep = torch.tensor([[True, False, True, True]] * 3)
    call = make_call(problem).but(attn_mask=keep if problem.mask else None)
    assert broken_window_rule(problem, call, seen(read)) == rule


def test_a_row_beyond_the_keys_that_sees_one_is_named() -> None:
    problem = Problem.parse("q=5/k=2/d=2/window=1.0")
    expected = masks.visible((1, 1, 5, 2), window_size=(1, 0))
    assert expected[0, 0].any(-1).tolist() == [True, True, True, False, False]
    assert broken_window_rule(problem, make_call(problem), expected | ~expected.any(-1, keepdim=True)) == (
        "mask.fully-masked-row"
    )


def test_keys_that_do_not_exist_are_the_matter_of_the_lengths() -> None:
    problem = Problem.parse("q=3/k=4/d=2/window=1.0/lengths=ragged")
    call = make_call(problem).but(key_lengths=torch.tensor([2], dtype=torch.int32))
    assert broken_window_rule(problem, call, seen("1000 1100 0110")) is None


def test_the_rows_of_few_kernels_cross_their_options_with_all_others() -> None:
    assert set(pairs_of_modifiers()) <= {pair for problem in modified() for pair in pairs_of(row_of(problem))}
    assert not any(problem.window for problem in array())
    assert len(modified()) <= 32
    assert all(any(is_modifier(*choice) for choice in row_of(problem).items()) for problem in modified())


def test_pairs_of_an_option_that_is_not_declared_are_not_possible() -> None:
    every = Capabilities(features=tuple(FEATURES))
    assert coverage([*array(), *modified()], every).pairs_met == coverage([], every).pairs_possible
    assert coverage([], Capabilities()).pairs_possible < coverage([], every).pairs_possible


@pytest.mark.parametrize(
    ("mutant", "mistake"),
    [
        ("window-ignored", "window-dropped"),
        ("window-counts-its-own-key", "window-one-short"),
        ("window-left-one-long", "window-one-long"),
        ("window-at-the-lower-right", "window-other-corner"),
        ("window-drops-causal", "window-drops-causal"),
        ("window-sides-swapped", "window-swapped"),
    ],
)
def test_the_diagnosis_names_the_mistake(mutant: str, mistake: str) -> None:
    problem = Problem(q_len=40, k_len=60, head_dim=32, q_heads=2, causal="upper_left", window=Window(7, 0), seed=3)
    if mistake not in ("window-drops-causal", "window-counts-its-own-key"):
        problem = problem.but(causal=None, window=Window(7, 2))
    case = case_named(f"output_stays_within_budget/{problem}")
    found = diagnose(kernel_of(mutant_named(mutant)), case)
    assert found is not None
    assert found.names[0] == mistake
    assert found.rule(problem).startswith("window.")


def test_a_check_that_knows_no_windows_refuses_one() -> None:
    with pytest.raises(InputError, match="does not know what a call with window gives"):
        case_named("rows_are_apart/q=5/k=9/d=8/window=3.0")
    with pytest.raises(InputError, match="does not know what a call with window gives"):
        case_named("p_0_is_no_dropout/q=5/k=9/d=8/dropout=0.5/window=3.0")
    assert case_named("unseen_keys_have_no_influence/q=5/k=9/d=8/window=3.0").problem.window == Window(
        3, 0, "upper_left"
    )


def test_a_kernel_without_windows_is_asked_for_none() -> None:
    """The cases of windows cost such a kernel nothing: it is not called, and no call is made."""
    calls = []
    kernel = resolve("torch_sdpa.math")
    quiet = Kernel("x", "x", lambda *tensors, **options: calls.append(options), kernel.capabilities)
    chosen = [case for case in cases("quick") if case.problem.window is not None]
    assert len(chosen) > 200
    for case in chosen:
        with pytest.raises(NotSupported):
            run_case(quiet, case)
    assert calls == []


def test_a_mask_beside_a_window_is_drawn_into_golden_and_regimes() -> None:
    masked = [case for case in cases("quick") if case.problem.window and case.problem.mask]
    assert {case.problem.mask.kind for case in masked if case.problem.mask} == {"bool", "float"}
    assert Mask("bool", "bhqk", "random") in {case.problem.mask for case in masked}
