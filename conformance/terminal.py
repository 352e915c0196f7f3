"""What a person sees: progress, failures as they come, the summary, and tables. Plain text where it is piped."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from attnspec.conformance.outcome import BROKEN, CaseResult
from attnspec.conformance.validate import Validation

STYLES = {"conformant": "bold green", "not_conformant": "bold red", "not_judged": "bold yellow"}
PIPED_WIDTH = 1000  # columns; a pipe has no width of its own
SHOWN_FAILURES = 5
SHOWN_REASONS = 12


def console(to_stderr: bool = False) -> Console:
    """Return a console on stdout or stderr: no colour where it is no terminal or NO_COLOR is set, nothing
    rewrapped."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(stderr=to_stderr, width=width, highlight=False, soft_wrap=True)


class Screen:
    """Shows a run: a progress bar on a terminal, and each of the first failures in full."""

    def __init__(self, title: str, most_failures: int = SHOWN_FAILURES) -> None:
        self.most_failures = most_failures
        self.out = console(to_stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=self.out, disable=not self.out.is_terminal, transient=True)
        self.task = self.progress.add_task(title, total=None)
        self.failures: Counter[str | None] = Counter()

    def __enter__(self) -> Screen:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def heard(self, result: CaseResult, done: int, total: int) -> None:
        """Show a result."""
        self.progress.update(self.task, completed=done, total=total)
        if result.outcome not in (*BROKEN, "xpass"):
            return
        self.failures[result.rule] += 1
        if self.failures[result.rule] > 1 or len(self.failures) > self.most_failures:
            return  # one screen a rule; the summary counts the rest, and a report keeps them all
        self.out.print(f"\n{result.message}", markup=False)


def summary(validation: Validation) -> None:
    """Print what came of a run, the verdict last."""
    out = console()
    for reason, count in refusals(validation.results):
        out.print(f"  not supported, {cases_in_words(count)}: {reason}", markup=False)
    deviations = Counter((r.rule, r.reason) for r in validation.results if r.outcome == "xfail")
    for (rule, why), count in deviations.items():
        out.print(f"  recorded deviation, {cases_in_words(count)}: {rule}: {why}", markup=False)
    broken = Counter(r.rule for r in validation.results if r.outcome in BROKEN and r.rule)
    for name, count in broken.most_common():
        example = next(r.id for r in validation.results if r.rule == name and r.outcome in BROKEN)
        out.print(f"  broken, {cases_in_words(count)}: {name}, such as {example}", markup=False)
    for note in validation.kernel.get("notes", ()):
        out.print(f"  note: {note}", markup=False)
    kernel, verdict = validation.kernel, validation.verdict
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in verdict.counts.items() if count)
    out.print(
        f"  {counts}; {verdict.declared_share:.1%} of the claimed surface ran; {worst(validation.results)}",
        markup=False,
    )
    met, possible = validation.pairs
    if met:
        out.print(
            f"  options crossed pairwise: {met} of {possible} possible pairs met, {met / possible:.1%}", markup=False
        )
    title = f"{kernel.get('target', '')} on {kernel.get('hardware', '')}, {validation.seconds:.1f} s: "
    out.print(title, end="", markup=False)
    out.print(verdict.statement, style=STYLES[verdict.verdict], markup=False)


def cases_in_words(count: int) -> str:
    """A number of cases, in words."""
    return f"{count} case{'s' if count != 1 else ''}"


def worst(results: tuple[CaseResult, ...]) -> str:
    """Say how much of its budget the worst passing case used."""
    errors = [r.error_over_budget for r in results if r.outcome == "pass" and r.error_over_budget is not None]
    return f"largest error of a passing case {max(errors):.2f} of its budget" if errors else "no budget was used"


def refusals(results: tuple[CaseResult, ...]) -> list[tuple[str, int]]:
    """Return why cases are not supported, each reason with its count, the most frequent first; reasons that differ in
    numbers alone count as the first of them."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for reason in (r.reason or "" for r in results if r.outcome == "not_supported"):
        counts[first.setdefault(re.sub(r"\d+", "#", reason), reason)] += 1
    return counts.most_common(SHOWN_REASONS)


def grid(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table."""
    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=name != columns[-1], overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    out = console()
    with out.capture() as captured:
        out.print(table, markup=False)
    out.print("\n".join(line.rstrip() for line in captured.get().splitlines()), markup=False)


@contextmanager
def steps(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Give a function that shows progress, called with how many are done, how many there are, and the name of the
    last."""
    out = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total, name: progress.update(task, completed=done, total=total)
