"""What can come of a case: the outcomes, the result of one case, and the two ways in which a check ends early."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnspec.conformance.case import Case

OUTCOMES = ("pass", "fail", "errored", "crashed", "timeout", "not_supported", "xfail", "xpass")
BROKEN = ("fail", "errored", "crashed", "timeout")  # what a kernel must never show
LONGEST_MESSAGE, LONGEST_REASON = 20_000, 2_000  # characters; the schema `report` allows no more


class Violation(Exception):
    """A rule is broken. rule: its id. what: one line. details: (label, text) lines for the failure screen.

    error_over_budget: how many budgets off the worst element is, where there is a budget.
    """

    def __init__(
        self, rule: str, what: str, details: tuple[tuple[str, str], ...] = (), error_over_budget: float | None = None
    ) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what
        self.details = details
        self.error_over_budget = error_over_budget
        self.case: Case | None = None  # the case that shows it, where it is smaller than the one that ran


class NotSupported(Exception):
    """The kernel does not claim, or cleanly refuses, what the case needs. declared: it was refused by declaration.
    head_dims: of the problems that were refused, where the case drew them."""

    head_dims: tuple[int, ...] = ()

    def __init__(self, reason: str, declared: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.declared = declared


@dataclass(frozen=True)
class CaseResult:
    """What came of one case; a line of the report (schema `report`).

    rules: ids that the case enforces; rule: the one that is broken. seconds: wall time. message: the failure screen,
    many lines. reason: why it is not supported, or why the failure was expected, one line. ran: the problem that ran,
    where the check chose one. looks_like: the known mistake that reproduces the failure. declared: whether the case
    lies within what the kernel claims.
    """

    id: str
    check: str
    family: str
    rules: tuple[str, ...]
    profiles: tuple[str, ...]
    outcome: str
    seconds: float = 0.0
    error_over_budget: float | None = None
    rule: str | None = None
    message: str | None = None
    reason: str | None = None
    declared: bool = True
    ran: str | None = None
    looks_like: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; an error that is no finite number is written as the text `inf` or `nan`."""
        error = self.error_over_budget
        writable = error if error is None or abs(error) < float("inf") else str(abs(error))
        return {"kind": "case", **asdict(self), "rules": list(self.rules), "profiles": list(self.profiles)} | {
            "error_over_budget": writable,
            "message": self.message and writable_text(self.message[:LONGEST_MESSAGE]),
            "reason": self.reason and writable_text(self.reason[:LONGEST_REASON]),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CaseResult:
        """Inverse of `to_json`."""
        fields = {name: value for name, value in data.items() if name != "kind"}
        error = fields["error_over_budget"]
        fields |= {"rules": tuple(fields["rules"]), "profiles": tuple(fields["profiles"])}
        return cls(**fields | {"error_over_budget": error if error is None else float(error)})

    def but(self, **changes: Any) -> CaseResult:
        """Return the result with some fields changed."""
        return replace(self, **changes)


def writable_text(text: str) -> str:
    """Return the text with what UTF-8 cannot hold (a lone surrogate out of a kernel's message) spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
