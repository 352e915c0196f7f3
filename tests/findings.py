"""What the suite finds on a kernel, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import cases
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.conformance.running import run_case


def finding(kernel: Kernel, case: Case) -> Violation | None:
    """Run a case; return what it finds, None where it passes or does not apply."""
    try:
        run_case(kernel, case)
    except Violation as found:
        return found
    except NotSupported:
        return None
    return None


def findings(kernel: Kernel, chosen: Callable[[Case], object]) -> Iterator[tuple[Case, Violation]]:
    """Run the quick cases that are chosen and yield those that fail, with what they find."""
    for case in cases("quick"):
        if chosen(case) and (found := finding(kernel, case)) is not None:
            yield case, found
