"""Recorded deviations of a backend: failures that are known, confirmed and explained, so that only news breaks a
run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from attnspec.conformance.catalogue import case_named
from attnspec.conformance.outcome import CaseResult
from attnspec.spec import schemas
from attnspec.spec.errors import InputError
from attnspec.spec.rules import rule


@dataclass(frozen=True)
class Expectation:
    """One recorded deviation, for a case or for whatever breaks a rule (schema `expectations`)."""

    outcome: str
    reason: str
    versions: str
    link: str
    case: str | None = None
    rule: str | None = None

    def meets(self, result: CaseResult) -> bool:
        """Whether this is the deviation that the result shows."""
        here = result.id == self.case if self.case else result.rule == self.rule
        return here and result.outcome == self.outcome

    def __str__(self) -> str:
        return self.case or f"rule {self.rule}"


@dataclass(frozen=True)
class Expectations:
    """The recorded deviations of one file."""

    entries: tuple[Expectation, ...] = ()
    path: str = ""

    def applied(self, result: CaseResult) -> CaseResult:
        """Return the result with a recorded failure turned into xfail, and the pass of a case recorded to fail into
        xpass."""
        for entry in self.entries:
            if entry.meets(result):
                return result.but(outcome="xfail", reason=f"recorded: {entry.reason} ({entry.versions}; {entry.link})")
            if result.outcome == "pass" and entry.case == result.id:
                return result.but(outcome="xpass", message=f"{entry} passes now: take its entry out of {self.path}")
        return result

    def unmet_rules(self, results: list[CaseResult]) -> list[str]:
        """Return the recorded rules that cases put to the test and none broke: unexpected passes too."""
        unmet = []
        for entry in self.entries:
            judged = [r for r in results if entry.rule in r.rules and r.outcome not in ("not_supported",)]
            if entry.rule and judged and not any(r.outcome == "xfail" and r.rule == entry.rule for r in results):
                unmet.append(entry.rule)
        return unmet


def read_expectations(path: Path) -> Expectations:
    """Return the deviations recorded in a file. Raises InputError for a broken file and for an unknown case or
    rule."""
    data = schemas.load(path, "expectations")
    try:
        entries = tuple(_known(Expectation(**entry)) for entry in data["entries"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return Expectations(entries, str(path))


def _known(entry: Expectation) -> Expectation:
    """Return the entry with its case by the string that a run uses. Raises InputError for an unknown case or rule."""
    if entry.case:
        return replace(entry, case=case_named(entry.case).id)
    rule(entry.rule or "")
    return entry
