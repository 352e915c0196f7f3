"""The matrix: rules by backends, from one validation each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attnspec.conformance.catalogue import EVERY_CASE
from attnspec.conformance.outcome import BROKEN, CaseResult
from attnspec.spec.rules import all_rules

WORST_FIRST = ("fail", "errored", "xpass", "xfail", "pass", "not_supported")
WORDS = {"not_supported": "n/a", "xfail": "recorded"}


@dataclass(frozen=True)
class Cell:
    """One rule on one backend. outcome: the worst; passed: how many cases put the rule to the test and passed."""

    outcome: str
    passed: int

    def __str__(self) -> str:
        if self.outcome == "pass":
            return f"{self.passed} ok"
        return WORDS.get(self.outcome, self.outcome) if self.outcome in WORST_FIRST else ""


def row(rule_id: str, results: Iterable[CaseResult]) -> Cell:
    """Return the cell of a rule. A broken case counts against the rule that it breaks, not against all it enforces."""
    outcomes = []
    for result in results:
        broken = (
            result.outcome in (*BROKEN, "xfail") and result.rule is not None
        )  # an error of the suite breaks no rule
        if result.rule == rule_id and broken:
            outcomes.append("xfail" if result.outcome == "xfail" else "fail")
        elif rule_id in (*result.rules, *EVERY_CASE) and not broken:
            outcomes.append(result.outcome)
    worst = next((outcome for outcome in WORST_FIRST if outcome in outcomes), "")
    return Cell(worst, outcomes.count("pass"))


def table(results: dict[str, tuple[CaseResult, ...]]) -> dict[str, dict[str, Cell]]:
    """Return rule id -> backend -> cell, for the rules that any case enforces, in reading order."""
    cells = {rule: {name: row(rule, of) for name, of in results.items()} for rule in all_rules()}
    return {rule: line for rule, line in cells.items() if any(cell.outcome for cell in line.values())}


def markdown(rows: dict[str, dict[str, Cell]], verdicts: dict[str, str]) -> str:
    """Return the matrix as a Markdown table, the verdicts first."""
    names = list(verdicts)
    lines = [f"| rule | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {rule} | {' | '.join(str(line[name]) for name in names)} |" for rule, line in rows.items()]
    said = [f"- {name}: {statement}" for name, statement in verdicts.items()]
    return "\n".join([*said, "", *lines, ""])
