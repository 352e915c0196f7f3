"""The kill matrix: which check of the suite finds which mutant, and which rule it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import process_time

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import BY_NAME, cases
from attnspec.conformance.diagnosis.diagnose import diagnose
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from mutants.house import Mutant, honest_name, kernel_of
from mutants.truth import remembered

SUITE_ERROR = "error of the suite"
FATES = ("named", "cited", "other", "survived")
MOST_ASKED = 3  # failing cases of a mutant that the diagnosis is asked about
KILLED = ("named", "cited")  # by a check that is there for the mutant's rule
Finding = tuple[Case, Violation]


@dataclass(frozen=True)
class Fate:
    """What became of a mutant.

    how: `named`, a case fails with the mutant's rule, or its diagnosis names that; `cited`, the rule is only among
    those that a failing case enforces; `other`, only cases fail that have nothing to do with it; `survived`. by: the
    first such case. rules: how often each rule was named, by check, up to the end of the run. seconds: of processor
    time.
    """

    name: str
    family: str
    rule: str
    how: str
    by: str = ""
    rules: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that failed."""
        return tuple(dict.fromkeys(check for check, _ in self.rules))

    @property
    def instead(self) -> str:
        """Which rules were named by which checks, the most frequent first."""
        return ", ".join(f"{rule} by {check} ({n})" for (check, rule), n in self.rules.most_common(2))


def fate_of(mutant: Mutant, family: str = "", *, shift: int = 0, thorough: bool = False) -> Fate:
    """Run the quick cases on a mutant and return its fate.

    The cases that enforce the mutant's rule come first, else in the order of the catalogue. The run ends at the first
    failing case that enforces the rule; thorough: only when every check has had all its cases, or has failed and the
    rule is named. shift: is added to the seed of every case but the golden ones.
    """
    began = process_time()
    kernel = kernel_of(mutant)
    first: dict[str, str] = {}
    rules: Counter[tuple[str, str]] = Counter()
    asked = 0
    with remembered():
        for case in in_order(quick_cases(shift), mutant.rule):
            if thorough and "named" in first and any(check == case.check for check, _ in rules):
                continue
            found = finding(kernel, case)
            if found is None:
                continue
            rules[case.check, found.rule] += 1
            how = "named" if found.rule == mutant.rule else "cited" if mutant.rule in case.rules else "other"
            if thorough and how == "cited" and asked < MOST_ASKED:
                asked += 1
                diagnosis = diagnose(kernel, found.case or case)
                if diagnosis is not None and diagnosis.rule(case.problem) == mutant.rule:
                    how = "named"
            first.setdefault(how, case.id)
            if how in KILLED and not thorough:
                break
    how = next((how for how in FATES if how in first), "survived")
    return Fate(mutant.name, family, mutant.rule, how, first.get(how, ""), rules, process_time() - began)


def accusations(target: str, shift: int = 0) -> list[Finding]:
    """Return every quick case in which the suite accuses an honest kernel."""
    kernel = resolve(target)
    with remembered():
        return [(case, found) for case in quick_cases(shift) if (found := finding(kernel, case)) is not None]


def fate_of_honest(target: str, shift: int = 0) -> Fate:
    """Return the fate of an honest kernel: `survived` is what it deserves."""
    began = process_time()
    found = accusations(target, shift)
    rules = Counter((case.check, violation.rule) for case, violation in found)
    by = found[0][0].id if found else ""
    seconds = process_time() - began
    return Fate(honest_name(target), "honest", "", "other" if found else "survived", by, rules, seconds)


def finding(kernel: Kernel, case: Case) -> Violation | None:
    """Run a case; return what it finds, None where it passes or does not apply."""
    torch.default_generator.manual_seed(0)  # for the mutants that draw numbers
    try:
        run_case(kernel, case)
    except Violation as found:
        return found
    except NotSupported:
        return None
    except Exception as error:  # a check must never end in anything else: shown as what it is, and the run goes on
        return Violation(SUITE_ERROR, f"{type(error).__name__}: {error}")
    return None


def in_order(every: Iterable[Case], rule: str) -> list[Case]:
    """Return the cases, those that enforce the rule first."""
    return sorted(every, key=lambda case: rule not in case.rules)


def quick_cases(shift: int = 0) -> Iterator[Case]:
    """Yield the quick cases, the seed of each generated problem `shift` higher."""
    for case in cases("quick"):
        check = BY_NAME[case.check]
        if shift == 0 or check.source is None:
            yield case
        elif case.draw is not None:
            yield check.drawn(case.draw._replace(seed=case.draw.seed + shift))
        else:
            problem = case.problem.but(seed=case.problem.seed + shift)
            yield check.case(str(problem), problem)
