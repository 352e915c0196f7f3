"""A check that enforces the rule that a mutant breaks fails on it, and the suite accuses no honest kernel.

What it cannot do yet stands in `mutants/not_yet.py`, and must fail until it is struck out there.
"""

from __future__ import annotations

import pytest
from mutants import all_mutants
from mutants.house import Mutant, honest_name, honest_targets
from mutants.matrix import KILLED, accusations, fate_of
from mutants.not_yet import ACCUSED, NOT_YET

pytestmark = pytest.mark.usefixtures("one_thread")


def listed(name: str, reasons: dict[str, str]) -> list[pytest.MarkDecorator]:
    """The mark of what is known to fail."""
    return [pytest.mark.xfail(reason=reasons[name], strict=True)] if name in reasons else []


@pytest.mark.parametrize("mutant", [pytest.param(m, id=m.name, marks=listed(m.name, NOT_YET)) for m in all_mutants()])
def test_the_suite_kills_a_mutant_by_a_check_for_its_rule(mutant: Mutant) -> None:
    fate = fate_of(mutant)
    assert fate.how in KILLED, f"{mutant.rule} should be named; {fate.how}: {fate.instead or 'no case fails'}"


@pytest.mark.parametrize(
    "target", [pytest.param(t, id=honest_name(t), marks=listed(honest_name(t), ACCUSED)) for t in honest_targets()]
)
def test_the_suite_accuses_no_honest_kernel(target: str) -> None:
    assert [(case.id, str(found)) for case, found in accusations(target)] == []


def test_what_is_listed_as_not_yet_exists() -> None:
    assert set(NOT_YET) <= {mutant.name for mutant in all_mutants()}
    assert set(ACCUSED) <= {honest_name(target) for target in honest_targets()}
