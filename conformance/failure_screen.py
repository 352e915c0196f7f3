"""The failure screen: everything about one failure, on one screen of plain text."""

from __future__ import annotations

import shlex
import textwrap

from attnspec.conformance.case import Case
from attnspec.conformance.outcome import Violation
from attnspec.spec.rules import rule

WIDTH = 118
LABEL = 10


def failure_screen(
    case: Case, found: Violation, rerun: list[str], looks_like: str | None = None, dialect: str | None = None
) -> str:
    """Return the screen: the broken rule and its text, what was seen, the worst element, the pattern, how to see it
    again. dialect: what a kernel declares that means to do what it looks like."""
    ran, case = case, found.case or case
    broken = rule(found.rule)
    others = [name for name in case.rules if name != broken.id]
    lines = [
        ("rule", f"{broken.id} ({broken.strength}, chapter {broken.chapter})"),
        ("", broken.text),
        ("what", found.what),
        *found.details,
        *((("drawn", ran.id),) if ran is not case else ()),
        *((("looks like", looks_like),) if looks_like else ()),
        *((("if meant", f"declare {dialect} (chapter contract)"),) if dialect else ()),
        ("exercises", ", ".join(others) if others else "no other rule"),
        ("rerun", shlex.join([*rerun, "--case", case.id])),
    ]
    return "\n".join([f"FAIL {case.id}", *(row(label, text) for label, text in lines)])


def row(label: str, text: str) -> str:
    """One labelled entry, wrapped under itself; a command is never broken."""
    indent = " " * (LABEL + 3)
    if label == "rerun":
        return f"  {label:{LABEL}} {text}"
    wrapped = textwrap.wrap(text, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
    return f"  {label:{LABEL}} " + f"\n{indent}".join(wrapped)
