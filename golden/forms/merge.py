"""Form `merge`: outputs and lse over disjoint parts of the keys, and those over all of them (chapter
"FlashAttention")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, lse_dtype, numbers
from attnspec.golden.inputs import Source, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.merge import merge
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError

EMPTIES = ("none", "some", "all", "but_one")
EMPTY_SHARE = 0.3

GROUPS: dict[str, dict[str, str]] = {
    "Two to five parts of usual lse.": {
        "merge-two-float32": "parts=2/q=5/dv=8/seed=600",
        "merge-three-float32": "parts=3/b=2/h=2/q=5/dv=8/seed=601",
        "merge-five-float64": "parts=5/q=7/dv=8/dtype=float64/seed=602",
        "merge-four-bfloat16": "parts=4/h=2/q=9/dv=24/dtype=bfloat16/seed=603",
        "merge-five-float16": "parts=5/h=2/q=9/dv=24/dtype=float16/seed=604",
        "merge-one-part-float32": "parts=1/q=5/dv=8/seed=605",
    },
    "Parts whose lse are equal: each has the same share.": {
        "merge-equal-float32": "parts=4/q=5/dv=8/equal/seed=610",
        "merge-equal-bfloat16": "parts=2/q=5/dv=8/equal/dtype=bfloat16/seed=611",
    },
    "The lse lie 90 or 1000 apart: an exponential of the distance leaves float32's or float64's range.": {
        "merge-gap-90-float32": "parts=2/h=2/q=5/dv=8/gap=90/seed=620",
        "merge-gap-90-bfloat16": "parts=3/q=5/dv=8/gap=90/dtype=bfloat16/seed=621",
        "merge-gap-1000-float32": "parts=3/h=2/q=5/dv=8/gap=1000/seed=622",
        "merge-gap-1000-float64": "parts=3/q=5/dv=8/gap=1000/dtype=float64/seed=623",
    },
    "All lse far from 0: an exponential of the lse itself leaves the range, and their maximum is negative.": {
        "merge-far-below-zero-float32": "parts=3/q=5/dv=8/shift=-200/seed=630",
        "merge-far-above-zero-float32": "parts=3/q=5/dv=8/shift=200/seed=631",
        "merge-far-below-zero-float64": "parts=3/q=5/dv=8/shift=-2000/dtype=float64/seed=632",
    },
    "Parts in which a row sees no key, whatever their outputs hold there; rows that no part sees.": {
        "merge-empty-parts-float32": "parts=3/h=2/q=9/dv=8/empty=some/seed=640",
        "merge-empty-parts-float16": "parts=4/h=2/q=9/dv=8/empty=some/dtype=float16/seed=641",
        "merge-empty-parts-hold-numbers-float32": "parts=3/q=9/dv=8/empty=some/garbage/seed=642",
        "merge-empty-parts-gap-float64": "parts=3/q=9/dv=8/empty=some/gap=90/dtype=float64/seed=643",
        "merge-all-empty-float32": "parts=2/q=3/dv=8/empty=all/seed=644",
        "merge-all-empty-hold-numbers-bfloat16": "parts=2/q=3/dv=8/empty=all/garbage/dtype=bfloat16/seed=645",
        "merge-but-one-empty-float32": "parts=4/q=5/dv=8/empty=but_one/garbage/seed=646",
    },
}


@dataclass(frozen=True)
class MergeProblem(WordProblem):
    """Parts to merge. b, h, q, dv: batch, heads, rows, value_dim. equal: all lse of a row are the same. gap: how far
    apart the lse of one part and the next lie; shift: added to every lse. empty: which parts see no key, `some` (and
    none does in the first row), `all`, `but_one` (of a row). garbage: the outputs of empty parts hold large numbers,
    else 0."""

    form: ClassVar[str] = "merge"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse")
    leading: ClassVar[str] = "outputs"

    parts: int = 2
    b: int = 1
    h: int = 1
    q: int = 1
    dv: int = 8
    equal: bool = False
    gap: int = 0
    shift: float = 0.0
    empty: str = "none"
    garbage: bool = False

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.empty not in EMPTIES:
            raise InputError(f"empty is {self.empty!r}: use one of {', '.join(EMPTIES)}")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        rows = (self.b, self.h, self.q)
        return {
            "outputs": (self.dtype, (self.parts, *rows, self.dv)),
            "lses": (lse_dtype(self.dtype), (self.parts, *rows)),
            "output": ("float64", (*rows, self.dv)),
            "lse": ("float64", rows),
        }

    def inputs(self) -> Tensors:
        """Return outputs (parts, batch, heads, q_len, value_dim) and lses (parts, batch, heads, q_len)."""
        draw = Source(self.seed)
        shape = (self.parts, self.b, self.h, self.q)
        lses = draw.normal("lses", shape)
        if self.equal:
            lses[:] = lses[:1]
        order = np.argsort(draw.uniform("order", shape), axis=0)  # which part of a row has the largest lse
        lses = lses - order * float(self.gap) + self.shift
        outputs = draw.normal("outputs", (*shape, self.dv))
        empty = self._empty(draw, shape)
        outputs[empty] = draw.normal("garbage", (*shape, self.dv))[empty] * 4096 if self.garbage else 0.0
        tensors = {"outputs": to_tensor(outputs, format_named(self.dtype))}
        return tensors | {
            "lses": to_tensor(np.where(empty, -np.inf, lses), format_named(lse_dtype(self.dtype))),
        }

    def _empty(self, draw: Source, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
        """Return which rows of a part see no key."""
        if self.empty == "none":
            return np.zeros(shape, np.bool_)
        if self.empty == "all":
            return np.ones(shape, np.bool_)
        if self.empty == "but_one":
            place = (draw.uniform("seeing", shape[1:]) * self.parts).astype(np.int64)
            alone: npt.NDArray[np.bool_] = np.arange(self.parts)[:, None, None, None] != place
            return alone
        empty = draw.chance("empty", shape, EMPTY_SHARE)
        empty[..., :1] = True
        return empty

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the merged output (batch, heads, q_len, value_dim) and lse (batch, heads, q_len)."""
        merged = merge(numbers(inputs["outputs"]), numbers(inputs["lses"]))
        return {"output": merged.output, "lse": merged.lse}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "flash.merge-empty": self.empty != "none",
            "flash.merge-gap": bool(self.gap or self.shift),
            "flash.merge-associative": self.parts > 1,
            "accuracy.merge-within-budget": True,
        }
        return tuple(rule for rule, decides in table.items() if decides)
