"""How a fault is planted in a source: what stands exactly once in it makes way for something else."""

from __future__ import annotations

from collections.abc import Iterable


def planted(text: str, changes: Iterable[tuple[str, str]], mutant: str, where: str) -> str:
    """Return a source with faults.

    changes: pairs of what stands in it, and what stands there instead. mutant, where: names of the two, for what is
    raised. Raises ValueError where what is to be changed does not stand exactly once.
    """
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"mutant {mutant}: {old!r} stands {text.count(old)} times in {where}, not once")
        text = text.replace(old, new)
    return text
