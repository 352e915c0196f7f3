"""The vectors of a form find every planted fault, in a case that cites the rule it breaks, and nothing honest."""

from __future__ import annotations

import runpy
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from mutants import all_mutants, mutant_named
from mutants.forms import FORM_FAMILIES, form_mutants
from mutants.house import HONEST, Mutant

from attnspec.conformance.forms.hold import FORMS, REFUSALS, Held, hold
from attnspec.conformance.forms.target import Tensors
from attnspec.golden.forms import FORM_CASES
from attnspec.golden.store import load_form
from attnspec.spec.rules import all_rules

HONEST_TARGETS = {  # file in tests/honest/forms: form, accuracy class
    "merge_at_once": ("merge", "fused"),
    "merge_pairwise": ("merge", "fused"),
    "multi_head": ("multi_head", "fused"),
    "multi_head_sdpa": ("multi_head", "fused"),
    "torch_module": ("multi_head", "fused"),
    "additive": ("additive", "fused"),
    "additive_output": ("additive", "eager"),
    "dropout": ("dropout", "fused"),
    "packed": ("packed", "fused"),
    "packed_tiles": ("packed", "fused"),
    "paged": ("paged", "fused"),
    "paged_stream": ("paged", "fused"),
    "paged_backward": ("paged", "fused"),
    "rope": ("rope", "fused"),
    "rope_complex": ("rope", "fused"),
    "rope_table": ("rope", "eager"),
    "quantise": ("quantise", "fused"),
    "quantise_nearest": ("quantise", "fused"),
    "quantised": ("quantised", "fused"),
    "quantised_folded": ("quantised", "fused"),
    "quantised_function": ("quantised", "fused"),
    "quantised_eager": ("quantised", "eager"),
    "quantised_rounded": ("quantised", "eager"),
    "latent_expanded": ("latent", "fused"),
    "latent_absorbed": ("latent", "fused"),
    "latent_absorbed_function": ("latent", "fused"),
    "alibi_slopes": ("alibi_slopes", "fused"),
    "alibi_slopes_running": ("alibi_slopes", "fused"),
    "alibi_bias": ("alibi_bias", "fused"),
    "alibi_bias_by_slot": ("alibi_bias", "fused"),
    "relative_bucket": ("relative_bucket", "fused"),
    "relative_bucket_search": ("relative_bucket", "fused"),
    "relative_bias": ("relative_bias", "fused"),
    "relative_bias_diagonals": ("relative_bias", "fused"),
    "relative_bias_backward": ("relative_bias", "fused"),
    "relative_bias_indexed": ("relative_bias", "eager"),
    "document_mask": ("document_mask", "fused"),
    "document_mask_by_document": ("document_mask", "fused"),
    "prefix_lm": ("prefix_lm", "fused"),
    "prefix_lm_by_row": ("prefix_lm", "fused"),
    "latent_eager": ("latent", "eager"),
    "context_parallel": ("context_parallel", "fused"),
    "context_parallel_gather": ("context_parallel", "fused"),
}
EXACT = ("relative_bucket", "document_mask", "prefix_lm")  # nothing is rounded
GRADIENTS = (
    "packed.backward", "paged.backward", "relative-bias.gradient", "context-parallel.backward", "latent.gradient",
    "quantised.backward",
)  # fmt: skip
LEAST_ERROR = dict.fromkeys((*EXACT, "quantise"), 0.0) | {"alibi_slopes": 0.001}  # of an honest target, over its budget
OTHER_SHAPES = tuple(f"multi-head-{of}-" for of in ("d-k", "d-v", "grouped", "multi-query"))
REFUSED_BY_TORCH = {case.name for case in FORM_CASES if case.name.startswith(OTHER_SHAPES)}
ALL_BUDGETS = {form: spec.budgets for form, spec in FORMS.items()}
MUTANTS = [pytest.param(form, m, id=m.name) for form, table in FORM_FAMILIES.items() for m in table]


def honest_target(name: str) -> Any:
    """The target of a file in `tests/honest/forms`."""
    return runpy.run_path(str(HONEST / "forms" / f"{name}.py"))["target"]


@cache
def budgets_of(form: str, case: str) -> Tensors:
    """The budgets of a vector, which do not depend on the target."""
    return ALL_BUDGETS[form](load_form(case), "fused")


@cache
def results_of(mutant: Mutant, form: str) -> tuple[Held, ...]:
    """What the vectors of a form say of a mutant."""
    room: dict[str, Any] = {}
    exec(compile(mutant.source(), mutant.name, "exec"), room)
    remembered = FORMS[form]._replace(budgets=lambda golden, _: budgets_of(form, golden.case.name))
    with patch.dict(FORMS, {form: remembered}):
        return tuple(hold(room["target"], form))


@pytest.mark.parametrize(("form", "mutant"), MUTANTS)
def test_the_vectors_of_a_form_kill_a_mutant_in_a_case_that_cites_its_rule(form: str, mutant: Mutant) -> None:
    """It is found by what it computes: it does not refuse, and does not raise in every case."""
    results = results_of(mutant, form)
    failed = [held for held in results if held.outcome == "fail"]
    assert any(mutant.rule in held.rules for held in failed), f"{mutant.rule}: {[held.case for held in failed]}"
    assert not [held.what for held in results if held.outcome == "not_supported"]
    raised = [held for held in results if held.what.startswith("raised")]
    assert len(raised) < len(results)


@pytest.mark.parametrize(("form", "mutant"), [x for x in MUTANTS if x.values[1].rule in GRADIENTS])
def test_a_fault_of_a_gradient_is_told_by_its_rule(form: str, mutant: Mutant) -> None:
    failed = [held for held in results_of(mutant, form) if held.outcome == "fail" and "gradient" in held.case]
    assert {held.rule for held in failed} == {mutant.rule}, [(held.case, held.rule, held.what) for held in failed]


@pytest.mark.parametrize("mutant", [m for m in FORM_FAMILIES["latent"] if m.name.startswith("latent-absent-")])
def test_a_fault_with_absent_tokens_is_told_by_its_rule_alone(mutant: Mutant) -> None:
    assert {held.rule for held in results_of(mutant, "latent") if held.outcome == "fail"} == {mutant.rule}


@pytest.mark.parametrize("name", HONEST_TARGETS)
def test_the_vectors_accuse_no_honest_target(name: str) -> None:
    form, accuracy = HONEST_TARGETS[name]
    results = list(hold(honest_target(name), form, accuracy))
    assert [(held.case, held.what) for held in results if held.outcome == "fail"] == []
    refused = {held.case for held in results if held.outcome == "not_supported"}
    assert refused == (REFUSED_BY_TORCH if name == "torch_module" else set())
    worst = max(held.error_over_budget or 0.0 for held in results)
    assert LEAST_ERROR.get(form, 0.1) <= worst < 1 or (form, worst) == ("quantise", 1)  # one step off is allowed


def test_every_honest_target_is_held() -> None:
    assert {path.stem for path in (HONEST / "forms").glob("*.py")} == set(HONEST_TARGETS)


def test_every_case_and_every_refusal_kills_a_mutant() -> None:
    killers = Counter(
        held.case
        for form, table in FORM_FAMILIES.items()
        for mutant in table
        for held in results_of(mutant, form)
        if held.outcome == "fail"
    )
    assert sorted({*(case.name for case in FORM_CASES), *REFUSALS} - killers.keys()) == []


def test_names_and_faults_are_unique() -> None:
    names = Counter(mutant.name for mutant in (*all_mutants(), *form_mutants()))
    sources = Counter((mutant.base, mutant.source()) for mutant in form_mutants())
    assert [name for name, count in names.items() if count > 1] == []
    assert [base for (base, _), count in sources.items() if count > 1] == []


def test_every_form_has_mutants_of_each_of_its_own_rules() -> None:
    assert set(FORM_FAMILIES) == set(FORMS)
    assert len(form_mutants()) >= 90
    shared = {"attention", "mask", "softmax", "notation", "grouped", "backward", "accuracy", "key-lengths"}
    for form, table in FORM_FAMILIES.items():
        cited = {rule for case in FORM_CASES if case.form == form for rule in case.rules}
        cited |= {refusal.rule for refusal in FORMS[form].refusals}
        own = {rule for rule in cited if rule.partition(".")[0] not in shared}
        planted = {mutant.rule for mutant in table}
        assert own <= planted <= cited <= all_rules().keys()


def test_a_mutant_of_a_form_has_a_name(tmp_path: Path) -> None:
    assert mutant_named("scale-by-d-model").source().count("math.sqrt(self.d_model)") == 1
