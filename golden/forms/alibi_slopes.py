"""Form `alibi_slopes`: a number of heads, and their slopes of ALiBi (chapter "position-bias")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.alibi import slopes
from attnspec.spec.errors import InputError

NUMBERS = {
    "Numbers of heads that are powers of two.": (1, 2, 4, 8, 16, 32, 64, 128),
    "Other numbers: the slopes of the power of two below, then every second one of the next.": (3, 5, 6, 7, 9, 12, 14),
    "Numbers of heads of models: three halves and five fourths of a power of two, one less, and odd ones.": (
        *(20, 24, 25, 40, 48, 63, 71, 96, 112),
    ),
}
GROUPS: dict[str, dict[str, str]] = {
    note: {f"alibi-slopes-of-{heads}": f"heads={heads}" for heads in numbers} for note, numbers in NUMBERS.items()
}


@dataclass(frozen=True)
class AlibiSlopesProblem(WordProblem):
    """The slopes of a number of heads, 1 to 4096."""

    form: ClassVar[str] = "alibi_slopes"
    truths: ClassVar[tuple[str, ...]] = ("slopes",)
    leading: ClassVar[str] = ""

    heads: int = 0

    def check(self) -> None:
        """Raise InputError for less than one head."""
        if self.heads < 1:
            raise InputError(f"heads is {self.heads}: use 1 or more")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of the slopes, (heads,)."""
        return {"slopes": ("float64", (self.heads,))}

    def inputs(self) -> Tensors:
        """Return no tensor: the number of heads is all that goes in."""
        return {}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the slopes, (heads,)."""
        return {"slopes": slopes(self.heads)}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        return ("alibi.slopes",)
