"""The one exception that means "the user can mend this", and what a name was meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input, told in one line: what was wrong, where, and what would be right.

    The command line prints the line and ends with exit code 2; it never shows a traceback for it.
    """


class Unavailable(Exception):
    """A backend that cannot run here; the text is the reason, such as a missing package or GPU."""


def did_you_mean(said: str, known: Iterable[str]) -> str:
    """Return `; did you mean '...'?` for the known name that is most like the one said, "" where none is much like
    it."""
    near = get_close_matches(said, list(known), n=1, cutoff=0.75)
    return f"; did you mean {near[0]!r}?" if near else ""
