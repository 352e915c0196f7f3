"""The ALiBi of a problem, as its string writes it: `symmetric`, `signed`, `symmetric.lower_right`."""

from __future__ import annotations

import re
from typing import NamedTuple

from attnspec.spec.errors import InputError

ALIBI_FORMS = ("symmetric", "signed")
WORD = re.compile(r"(symmetric|signed)(?:\.(upper_left|lower_right))?")


class Alibi(NamedTuple):
    """What the `alibi_slopes` of a problem mean: a score falls by slope times distance.

    form: of the distance beyond the diagonal, `symmetric` or `signed`. corner: where the diagonal begins or ends,
    `upper_left` or `lower_right`; None is that of causal triangle and window. Rules: chapter "position-bias".
    """

    form: str = "symmetric"
    corner: str | None = None

    def __str__(self) -> str:
        return self.form + (".lower_right" if self.corner == "lower_right" else "")

    @classmethod
    def parse(cls, text: str) -> Alibi:
        """Read `form` or `form.corner`; nothing is `symmetric`. Raises InputError."""
        found = WORD.fullmatch(text or "symmetric")
        if found is None:
            right = f"use {' or '.join(ALIBI_FORMS)}, and a corner if need be: signed.lower_right"
            raise InputError(f"alibi {text!r}: {right}")
        return cls(found[1], found[2])
