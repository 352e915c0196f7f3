"""Form `prefix_lm`: lengths of prefixes that are seen whole, and which key each query sees (chapter
"document-masks")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem
from attnspec.golden.inputs import Source
from attnspec.golden.shapes import Shapes
from attnspec.spec.errors import InputError

CORNERS = ("upper_left", "lower_right")
PREFIXES = ("ragged", "zero", "full", "one")

GROUPS: dict[str, dict[str, str]] = {
    "A prefix of its own for each batch element, and the triangle behind it.": {
        "prefix-lm-square": "b=4/q=7/k=7/seed=1200",
        "prefix-lm-one-batch": "q=9/k=9/seed=1201",
        "prefix-lm-square-lower-right": "b=3/q=6/k=6/corner=lower_right/seed=1202",
    },
    "A prefix of no token, of one and of all: the triangle, the triangle, and no mask.": {
        "prefix-lm-zero": "b=2/q=6/k=6/prefix=zero/seed=1210",
        "prefix-lm-one": "b=2/q=6/k=6/prefix=one/seed=1211",
        "prefix-lm-full": "b=2/q=6/k=6/prefix=full/seed=1212",
    },
    "Fewer queries than keys and more, from both corners.": {
        "prefix-lm-wide": "b=3/q=4/k=9/seed=1220",
        "prefix-lm-wide-lower-right": "b=3/q=4/k=9/corner=lower_right/seed=1221",
        "prefix-lm-tall": "b=3/q=9/k=4/seed=1222",
        "prefix-lm-tall-lower-right": "b=3/q=9/k=4/corner=lower_right/seed=1223",
        "prefix-lm-tall-zero-lower-right": "b=2/q=9/k=4/prefix=zero/corner=lower_right/seed=1224",
        "prefix-lm-one-query": "b=3/q=1/k=9/seed=1225",
        "prefix-lm-one-query-lower-right": "b=3/q=1/k=9/corner=lower_right/seed=1226",
    },
}


@dataclass(frozen=True)
class PrefixLmProblem(WordProblem):
    """The mask of prefixes. b, q, k: batch, q_len, k_len. prefix: lengths of 1 to k_len (`ragged`), or `zero`, `one`,
    `full` in each batch element. corner: of the triangle."""

    form: ClassVar[str] = "prefix_lm"
    truths: ClassVar[tuple[str, ...]] = ("visible",)
    leading: ClassVar[str] = ""

    b: int = 1
    q: int = 1
    k: int = 1
    prefix: str = "ragged"
    corner: str = "upper_left"

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.prefix not in PREFIXES or self.corner not in CORNERS:
            raise InputError(f"prefix is {self.prefix!r}, corner {self.corner!r}: use {PREFIXES} and {CORNERS}")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        return {"prefix_lengths": ("int32", (self.b,)), "visible": ("float64", (self.b, 1, self.q, self.k))}

    def inputs(self) -> Tensors:
        """Return the lengths of the prefixes."""
        drawn = 1 + (Source(self.seed).uniform("prefix_lengths", (self.b,)) * self.k).astype(np.int32)
        fixed = {"zero": 0, "one": 1, "full": self.k}
        if self.prefix in fixed:
            drawn[:] = fixed[self.prefix]
        return {"prefix_lengths": torch.from_numpy(drawn)}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return 1 where a query sees a key, (batch, 1, q_len, k_len)."""
        offset = self.k - self.q if self.corner == "lower_right" else 0
        visible = np.zeros((self.b, 1, self.q, self.k))
        for b, _, i, j in np.ndindex(visible.shape):
            visible[b, 0, i, j] = j < int(inputs["prefix_lengths"][b]) or j <= i + offset
        return {"visible": visible}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        return ("prefix-lm.visible",)
