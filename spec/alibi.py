"""The ALiBi of a problem, as its string writes it: `symmetric`, `signed.lower_right`, `symmetric.bh.learned`."""

from __future__ import annotations

import re
from typing import NamedTuple

from attnspec.spec.errors import InputError

ALIBI_FORMS = ("symmetric", "signed")
SLOPE_SHAPES = ("h", "bh")
WORD = re.compile(r"(symmetric|signed)(?:\.(upper_left|lower_right))?(?:\.(bh|h))?(\.learned)?")


class Alibi(NamedTuple):
    """What the `alibi_slopes` of a problem mean: a score falls by slope times distance.

    form: of the distance beyond the diagonal, `symmetric` or `signed`. corner: where the diagonal begins or ends,
    `upper_left` or `lower_right`; None is that of causal triangle and window. shape: of the slopes, a letter a
    dimension, `h` or `bh`. learned: whether the slopes ask for a gradient, where the problem has gradients. Rules:
    chapter "position-bias".
    """

    form: str = "symmetric"
    corner: str | None = None
    shape: str = "h"
    learned: bool = False

    def word(self, default: str) -> str:
        """Return what `parse` reads. default: the corner of causal triangle and window; it is left out where both are
        the upper left."""
        corner = "" if self.corner == default == "upper_left" else f".{self.corner}"
        return f"{self.form}{corner}{'.bh' if self.shape == 'bh' else ''}{'.learned' if self.learned else ''}"

    @classmethod
    def parse(cls, text: str) -> Alibi:
        """Read `form[.corner][.shape][.learned]`; nothing is `symmetric`. Raises InputError."""
        found = WORD.fullmatch(text or "symmetric")
        if found is None:
            right = f"use {' or '.join(ALIBI_FORMS)}, then if need be a corner, bh and learned: signed.lower_right"
            raise InputError(f"alibi {text!r}: {right}")
        return cls(found[1], found[2], found[3] or "h", found[4] is not None)
