"""The suite finds every fault that is planted in the Triton kernels, by small cases, and nothing in the honest ones."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest
from mutants.triton_flash import MUTANTS, SPLIT_KEYS, TILE, Planted, backend_of, package_of

from attnspec.conformance.catalogue import case_named
from attnspec.conformance.forms.hold import hold
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import Violation
from attnspec.conformance.running import run_case
from attnspec.spec.rules import all_rules

HONEST = "attnspec.implementations.triton_flash"
OF_FORMS = {"packed": "packed.packed_attention", "paged": "paged.paged_attention", "merge": "merge.merge"}


def broken(package: str, case: str, splits: bool) -> list[str]:
    """The rules that a case reports as broken by the kernels of a package."""
    form, _, name = case.rpartition(":")
    if form:
        module, function = OF_FORMS[form].split(".")
        target = getattr(import_module(f"{package}.{module}"), function)
        (held,) = hold(target, form, names=(name,))
        assert held.outcome != "not_supported", held.what
        return [str(held.rule), *held.rules] if held.outcome == "fail" else []
    backend = backend_of(package, case, splits)
    try:
        run_case(Kernel(package, package, backend, backend.capabilities), case_named(case))
    except Violation as found:
        return [found.rule, *case_named(case).rules]
    return []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_case_kills_the_mutant_and_cites_its_rule(mutant: Planted) -> None:
    assert mutant.rule in broken(package_of(mutant), mutant.case, mutant.splits)


@pytest.mark.parametrize(("case", "splits"), sorted({(mutant.case, mutant.splits) for mutant in MUTANTS}))
def test_the_same_case_accuses_no_honest_kernel(case: str, splits: bool) -> None:
    assert broken(HONEST, case, splits) == []


def test_mutants_are_many_and_apart() -> None:
    assert len(MUTANTS) >= 10
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    assert len({(mutant.module, mutant.source()) for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.rule for mutant in MUTANTS} <= all_rules().keys()
    assert SPLIT_KEYS % TILE[1] == 0


def test_a_change_must_fit_its_module() -> None:
    with pytest.raises(ValueError, match="'not in there' stands 0 times in forward"):
        Planted("x", "forward", "not in there", "", "mask.bool", "").source()
