"""Form `relative_bias`: a table of learned numbers and lengths, the bias of T5, and the gradient of the table (chapter
"position-bias")."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, numbers
from attnspec.golden.inputs import Source, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.relative_bias import buckets
from attnspec.reference.exact.rounding import round_to
from attnspec.spec.dtypes import FLOAT64, format_named
from attnspec.spec.errors import InputError

CORNERS = ("upper_left", "lower_right")

GROUPS: dict[str, dict[str, str]] = {
    "A bias for every row and key, of both directions, and for causal attention.": {
        "relative-bias-square-float32": "h=3/q=12/k=12/buckets=8/max_distance=10/seed=1000",
        "relative-bias-square-causal-float32": "h=3/q=12/k=12/buckets=8/max_distance=10/causal/seed=1001",
        "relative-bias-square-bfloat16": "h=2/q=9/k=9/buckets=8/max_distance=6/dtype=bfloat16/seed=1002",
        "relative-bias-square-float16": "h=2/q=9/k=9/buckets=8/max_distance=6/dtype=float16/seed=1003",
        "relative-bias-square-float64": "h=2/q=9/k=9/buckets=6/max_distance=6/causal/dtype=float64/seed=1004",
        "relative-bias-one-head-float32": "q=7/k=7/buckets=4/max_distance=4/seed=1005",
        "relative-bias-as-many-heads-as-buckets-float32": "h=8/q=9/k=9/buckets=8/max_distance=6/seed=1006",
    },
    "Fewer queries than keys and more, from the upper left corner and from the lower right one.": {
        "relative-bias-wide-float32": "h=2/q=3/k=10/buckets=8/max_distance=6/seed=1010",
        "relative-bias-wide-lower-right-float32": "h=2/q=3/k=10/buckets=8/max_distance=6/corner=lower_right/seed=1011",
        "relative-bias-wide-causal-bfloat16": "h=2/q=3/k=10/buckets=8/max_distance=6/causal/dtype=bfloat16/seed=1012",
        "relative-bias-tall-float32": "h=2/q=10/k=3/buckets=8/max_distance=6/seed=1013",
        "relative-bias-tall-lower-right-float32": "h=2/q=10/k=3/buckets=8/max_distance=6/corner=lower_right/seed=1014",
    },
    "Decoding: the bias that the last token has in one call over all tokens, with the numbers of T5.": {
        "relative-bias-decode-float32": (
            "h=4/q=1/k=200/buckets=32/max_distance=128/causal/corner=lower_right/seed=1020"
        ),
        "relative-bias-decode-bidirectional-float16": (
            "h=2/q=2/k=150/buckets=32/max_distance=128/corner=lower_right/dtype=float16/seed=1021"
        ),
        "relative-bias-powers-float32": (
            "h=2/q=1/k=170/buckets=10/max_distance=160/causal/corner=lower_right/seed=1022"
        ),
    },
    "The gradient of the table adds up over the slots that read an entry, and is 0 for one that none reads.": {
        "relative-bias-gradient-float32": "h=3/q=12/k=12/buckets=8/max_distance=10/grad/seed=1030",
        "relative-bias-gradient-float64": "h=2/q=9/k=7/buckets=6/max_distance=6/causal/grad/dtype=float64/seed=1031",
        "relative-bias-gradient-bfloat16": "h=2/q=17/k=13/buckets=8/max_distance=6/grad/dtype=bfloat16/seed=1032",
        "relative-bias-gradient-float16": "h=2/q=13/k=17/buckets=8/max_distance=6/grad/dtype=float16/seed=1033",
        "relative-bias-gradient-causal-float32": "h=2/q=11/k=11/buckets=8/max_distance=7/causal/grad/seed=1034",
        "relative-bias-gradient-unread-float32": "h=2/q=4/k=5/buckets=16/max_distance=12/grad/seed=1035",
        "relative-bias-gradient-lower-right-float32": (
            "h=2/q=3/k=10/buckets=8/max_distance=6/corner=lower_right/grad/seed=1036"
        ),
        "relative-bias-gradient-decode-float32": (
            "h=4/q=1/k=150/buckets=32/max_distance=128/causal/corner=lower_right/grad/seed=1037"
        ),
        "relative-bias-gradient-tiles-float32": "h=2/q=35/k=38/buckets=8/max_distance=24/grad/seed=1038",
    },
}


@dataclass(frozen=True)
class RelativeBiasProblem(WordProblem):
    """The bias of a table. h, q, k: heads, q_len, k_len. buckets: num_buckets, of both directions together; causal: not
    bidirectional. corner: where query 0 stands, at key 0 or at key k_len - q_len. grad: a gradient flows back from the
    bias."""

    form: ClassVar[str] = "relative_bias"
    truths: ClassVar[tuple[str, ...]] = ("bias", "grad_table")
    leading: ClassVar[str] = "table"

    h: int = 1
    q: int = 1
    k: int = 1
    buckets: int = 0
    max_distance: int = 0
    causal: bool = False
    corner: str = "upper_left"
    grad: bool = False

    def check(self) -> None:
        """Raise InputError for another corner."""
        if self.corner not in CORNERS:
            raise InputError(f"corner is {self.corner!r}: use one of {', '.join(CORNERS)}")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        table, bias = (self.buckets, self.h), (1, self.h, self.q, self.k)
        shapes: Shapes = {"table": (self.dtype, table), "bias": ("float64", bias)}
        return shapes | ({"grad_bias": (self.dtype, bias), "grad_table": ("float64", table)} if self.grad else {})

    def inputs(self) -> Tensors:
        """Return the table and what flows back, normal numbers."""
        draw, fmt = Source(self.seed), format_named(self.dtype)
        names = ("table", "grad_bias") if self.grad else ("table",)
        return {name: to_tensor(draw.normal(name, self.shapes()[name][1]), fmt) for name in names}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the number of each head, row and key, (1, heads, q_len, k_len), copies out of the table, and the
        gradient of the table."""
        offset = self.k - self.q if self.corner == "lower_right" else 0
        distance = np.arange(self.k)[None, :] - np.arange(self.q)[:, None] - offset
        options = {"num_buckets": self.buckets, "max_distance": self.max_distance}
        places = buckets(distance, bidirectional=not self.causal, **options)
        found = {"bias": np.moveaxis(numbers(inputs["table"])[places], -1, 0)[None]}
        if self.grad:
            found["grad_table"] = self._gradient(numbers(inputs["grad_bias"]), places)
        return found

    def _gradient(self, flow: npt.NDArray[np.float64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the sum over the slots that read each entry of the table, in rational numbers and rounded once."""
        sums = np.full((self.buckets, self.h), Fraction(0), dtype=np.object_)
        for _, head, row, key in np.ndindex(flow.shape):
            sums[places[row, key], head] += Fraction(float(flow[0, head, row, key]))
        return np.array([round_to(entry, FLOAT64) for entry in sums.ravel()]).reshape(sums.shape)

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "relative-bias.bucket": True,
            "relative-bias.direction": True,
            "relative-bias.head": self.h > 1,
            "relative-bias.gradient": self.grad,
            "relative-bias.offset": self.q != self.k,
        }
        return tuple(rule for rule, decides in table.items() if decides)
