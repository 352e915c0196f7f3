"""A window of keys around the diagonal, as a problem's string writes it: `3.0`, `-1.2`, `3.0.lower_right`."""

from __future__ import annotations

import re
from typing import NamedTuple

from attnspec.spec.errors import InputError

FORM = re.compile(r"(-1|[0-9]{1,5})\.(-1|[0-9]{1,5})(?:\.(upper_left|lower_right))?")


class Window(NamedTuple):
    """The `window_size` of a problem: row i sees the keys d - left to d + right, d its place on the diagonal.

    left, right: numbers of keys, -1 for any number. corner: where the diagonal begins or ends, `upper_left` or
    `lower_right`; None is that of the causal triangle, without which it is `upper_left`. Rules: chapter "window".
    """

    left: int
    right: int
    corner: str | None = None

    def __str__(self) -> str:
        lower = ".lower_right" if self.corner == "lower_right" else ""
        return f"{self.left}.{self.right}{lower}"

    @property
    def size(self) -> tuple[int, int]:
        """What a call is told: (left, right)."""
        return self.left, self.right

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read `left.right` or `left.right.corner`. Raises InputError."""
        found = FORM.fullmatch(text)
        if found is None:
            right = "use left.right, each a number of keys or -1 for any, and a corner if need be: 3.0.lower_right"
            raise InputError(f"window {text!r}: {right}")
        return cls(int(found[1]), int(found[2]), found[3])
