"""Form `alibi_bias`: slopes, lengths and a dialect, and the bias of ALiBi (chapter "position-bias")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, numbers
from attnspec.golden.inputs import Source, round_once, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.alibi import bias, slopes
from attnspec.spec.dtypes import FLOAT32, format_named
from attnspec.spec.errors import InputError

SIDES = ("symmetric", "signed")
CORNERS = ("upper_left", "lower_right")
LENGTHS = ("none", "ragged", "zero")
SLOPES = ("table", "drawn")

GROUPS: dict[str, dict[str, str]] = {
    "As many queries as keys: every offset is 0, and keys lie on both sides of the diagonal.": {
        "alibi-bias-square-float32": "h=4/q=6/k=6/seed=950",
        "alibi-bias-square-signed-float32": "h=4/q=6/k=6/side=signed/seed=951",
        "alibi-bias-square-lower-right-float32": "h=2/q=5/k=5/corner=lower_right/seed=952",
        "alibi-bias-of-6-heads-float32": "h=6/q=5/k=5/seed=953",
        "alibi-bias-of-12-heads-signed-float32": "h=12/q=3/k=4/side=signed/seed=954",
    },
    "Fewer queries than keys, measured from the upper left and from the lower right corner.": {
        "alibi-bias-wide-float32": "h=3/q=3/k=8/seed=960",
        "alibi-bias-wide-signed-float32": "h=3/q=3/k=8/side=signed/seed=961",
        "alibi-bias-wide-lower-right-float32": "h=3/q=3/k=8/corner=lower_right/seed=962",
        "alibi-bias-wide-lower-right-signed-float32": "h=3/q=3/k=8/side=signed/corner=lower_right/seed=963",
        "alibi-bias-one-query-float32": "h=8/q=1/k=17/corner=lower_right/seed=964",
        "alibi-bias-far-float32": "h=4/q=1/k=3000/corner=lower_right/slopes=drawn/seed=965",
    },
    "More queries than keys: the first rows of the lower right corner see every key beyond the diagonal.": {
        "alibi-bias-tall-float32": "h=3/q=8/k=3/seed=970",
        "alibi-bias-tall-lower-right-float32": "h=3/q=8/k=3/corner=lower_right/seed=971",
        "alibi-bias-tall-lower-right-signed-float32": "h=3/q=8/k=3/side=signed/corner=lower_right/seed=972",
    },
    "A diagonal for each batch element, from its key length; a batch element without keys.": {
        "alibi-bias-lengths-float32": "b=3/h=4/q=2/k=9/corner=lower_right/lengths=ragged/seed=980",
        "alibi-bias-lengths-signed-float32": "b=3/h=4/q=2/k=9/side=signed/corner=lower_right/lengths=ragged/seed=981",
        "alibi-bias-lengths-upper-left-float32": "b=3/h=4/q=2/k=9/lengths=ragged/seed=982",
        "alibi-bias-zero-length-float32": "b=3/h=2/q=2/k=7/corner=lower_right/lengths=zero/seed=983",
    },
    "Slopes of each batch element, of any sign, 0 among them, and of every dtype.": {
        "alibi-bias-drawn-float32": "h=4/q=5/k=6/slopes=drawn/seed=990",
        "alibi-bias-drawn-float64": "h=4/q=5/k=6/side=signed/slopes=drawn/dtype=float64/seed=991",
        "alibi-bias-drawn-bfloat16": "h=4/q=5/k=70/slopes=drawn/corner=lower_right/dtype=bfloat16/seed=992",
        "alibi-bias-drawn-float16": "h=4/q=5/k=70/slopes=drawn/corner=lower_right/dtype=float16/seed=993",
        "alibi-bias-of-batch-float32": "b=3/h=2/q=3/k=5/slopes=drawn/batched/seed=994",
        "alibi-bias-of-batch-lengths-float32": (
            "b=3/h=2/q=3/k=5/slopes=drawn/batched/corner=lower_right/lengths=ragged/seed=995"
        ),
    },
}


@dataclass(frozen=True)
class AlibiBiasProblem(WordProblem):
    """The bias of slopes. b, h, q, k: batch, heads, q_len, k_len. side: the dialect `alibi_form`; corner: the dialect
    `alibi_alignment`. slopes: those of the `table`, or `drawn`, normal numbers, the first one 0. batched: slopes of
    each batch element. lengths: `ragged` (1 to k_len), `zero` (the same, and none in the first)."""

    form: ClassVar[str] = "alibi_bias"
    truths: ClassVar[tuple[str, ...]] = ("bias",)
    leading: ClassVar[str] = ""

    b: int = 1
    h: int = 1
    q: int = 1
    k: int = 1
    side: str = "symmetric"
    corner: str = "upper_left"
    slopes: str = "table"
    batched: bool = False
    lengths: str = "none"

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        given = ((self.side, SIDES), (self.corner, CORNERS), (self.slopes, SLOPES), (self.lengths, LENGTHS))
        for word, known in given:
            if word not in known:
                raise InputError(f"{word!r} is unknown: use one of {', '.join(known)}")
        if self.b > 1 and not self.batched and self.lengths == "none":
            raise InputError(f"b is {self.b}: use 1 without batched slopes or lengths")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        shapes: Shapes = {
            "alibi_slopes": (self.dtype, (self.b, self.h) if self.batched else (self.h,)),
            "bias": ("float64", (self.b, self.h, self.q, self.k)),
        }
        if self.lengths != "none":
            shapes["key_lengths"] = ("int32", (self.b,))
        return shapes

    def inputs(self) -> Tensors:
        """Return alibi_slopes, which float32 holds, and key_lengths."""
        draw, shape = Source(self.seed), self.shapes()["alibi_slopes"][1]
        drawn = np.broadcast_to(slopes(self.h), shape)
        if self.slopes == "drawn":
            drawn = draw.normal("alibi_slopes", shape)
            drawn[..., :1] = 0.0
        tensors = {"alibi_slopes": to_tensor(round_once(drawn, FLOAT32), format_named(self.dtype))}
        if self.lengths != "none":
            lengths = 1 + (draw.uniform("key_lengths", (self.b,)) * self.k).astype(np.int32)
            lengths[:1] = 0 if self.lengths == "zero" else lengths[:1]
            tensors["key_lengths"] = torch.from_numpy(lengths)
        return tensors

    def truth(self, inputs: Tensors) -> Arrays:
        """Return minus slope times distance, (batch, heads, q_len, k_len), 0 for keys that do not exist."""
        ends = inputs["key_lengths"].tolist() if "key_lengths" in inputs else [self.k] * self.b
        distances = np.zeros((self.b, 1, self.q, self.k), dtype=np.int64)
        for b, _, i, j in np.ndindex(distances.shape):
            offset = ends[b] - self.q if self.corner == "lower_right" else 0
            signed = i + offset - j
            if j < ends[b]:
                distances[b, 0, i, j] = abs(signed) if self.side == "symmetric" else signed
        return {"bias": bias(numbers(inputs["alibi_slopes"]), distances)}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        beyond = self.k > 1 and (self.corner == "upper_left" or self.q > 1)  # a key lies beyond the diagonal
        offset = self.q != self.k or self.lengths != "none"
        table = {"alibi.bias": True, "alibi.form": beyond, "alibi.offset": offset}
        return tuple(rule for rule, decides in table.items() if decides)
