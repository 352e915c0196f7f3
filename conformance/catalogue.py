"""Every check of the suite: its family, the rules it enforces, and its cases. The bodies are in `checks/`.

Nothing here imports a framework, so that cases can be listed and chosen at once. The order is the order of a run: the
strongest of the cheap checks first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnspec.conformance import problems
from attnspec.conformance.case import Case
from attnspec.golden.cases import CASES
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

LEVELS = ("quick", "full")


@dataclass(frozen=True)
class Check:
    """A check. name: the sentence it proves, and the name of its body in `checks/<module>.py`. rules: ids that every
    case of it enforces; a case adds those that its problem exercises. problems: of a level; None for the golden
    cases."""

    name: str
    module: str
    family: str
    rules: tuple[str, ...]
    problems: Callable[[str], Iterator[Problem]] | None
    return_lse: bool = False

    @property
    def body(self) -> Callable[[Any, Case], float | None]:
        """The function that runs it (imports torch)."""
        module = importlib.import_module(f"attnspec.conformance.checks.{self.module}")
        return getattr(module, self.name)  # type: ignore[no-any-return]

    @property
    def sentence(self) -> str:
        """What it proves, in a sentence."""
        return " ".join((self.body.__doc__ or "").split())

    def case(self, name: str, problem: Problem, rules: tuple[str, ...] = ()) -> Case:
        """Return one case of the check."""
        return Case(self.name, self.family, name, problem, self.rules, self.return_lse, rules)

    def cases(self, level: str) -> Iterator[Case]:
        """Return the check's cases at a level."""
        if self.problems is None:
            yield from (self.case(golden.name, golden.problem, golden.rules) for golden in CASES)
        else:
            yield from (self.case(str(problem), problem) for problem in self.problems(level))


EVERY_CASE = (  # enforced by `kernel.well_formed`, `running.run_case` and `judgement.judge`, whatever the check
    "contract.output-type",
    "contract.output-shape",
    "contract.output-dtype",
    "contract.output-device",
    "contract.output-written",
    "contract.declared-runs",
    "accuracy.classes",
    "accuracy.overflow",
    "profile.core",
)
LSE_RULES = ("accuracy.lse-within-budget", "softmax.lse-base", "softmax.lse-dtype")

CHECKS = (
    Check("visible_set_is_exact", "probes", "probe", (), problems.visible_sets),
    Check("query_heads_read_their_group", "probes", "probe", ("grouped.head-map",), problems.head_maps),
    Check("inputs_stay_unchanged", "contract", "contract", ("contract.inputs-unchanged",), problems.plain),
    Check("outputs_share_no_memory", "contract", "contract", ("contract.no-alias",), problems.plain),
    Check("results_repeat_bit_for_bit", "contract", "contract", ("contract.deterministic",), problems.plain),
    Check("storage_layout_does_not_matter", "contract", "contract", ("contract.layouts",), problems.plain),
    Check("zero_lengths_give_zero_or_nothing", "contract", "contract", ("attention.zero-length",), problems.empties),
    Check("hidden_keys_have_no_influence", "laws", "law", ("mask.hidden-values",), problems.hiding),
    Check("visible_nan_comes_through", "laws", "law", ("mask.visible-nan",), problems.plain),
    Check("output_matches_golden", "golden", "golden", ("accuracy.output-within-budget",), None),
    Check("lse_matches_golden", "golden", "golden", LSE_RULES, None, return_lse=True),
    Check("output_stays_within_budget", "regimes", "regime", ("accuracy.output-within-budget",), problems.regimes),
    Check("lse_stays_within_budget", "regimes", "regime", LSE_RULES, problems.regimes, True),
)
BY_NAME = {check.name: check for check in CHECKS}


@cache
def cases(level: str) -> tuple[Case, ...]:
    """Return every case of a level, in the order of a run. Raises InputError for an unknown level."""
    if level not in LEVELS:
        raise InputError(f"unknown level {level!r}: use one of {', '.join(LEVELS)}")
    return tuple(case for check in CHECKS for case in check.cases(level))


def case_named(case_id: str) -> Case:
    """Return the case of an id, also of one that no level lists. Raises InputError that says what is wrong with it."""
    name, slash, rest = case_id.partition("/")
    check = BY_NAME.get(name)
    if check is None or not slash:
        raise InputError(f"unknown case {case_id!r}: it must begin with a check and `/`; see `attnspec list cases`")
    if check.problems is None:
        for golden in CASES:
            if golden.name == rest:
                return check.case(golden.name, golden.problem, golden.rules)
        raise InputError(f"unknown case {case_id!r}: no golden case is called {rest!r}; see `attnspec list cases`")
    try:
        problem = Problem.parse(rest)
    except InputError as error:
        raise InputError(f"unknown case {case_id!r}: {error}") from None
    return check.case(str(problem), problem)
