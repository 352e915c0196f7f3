"""Form `quantise`: keys or values as 8-bit numbers, x / scale rounded and cut (chapter "quantised")."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, numbers
from attnspec.golden.forms.quantised import E4M3, GRAINS, LARGEST, LOWEST, STORED, scale_shape
from attnspec.golden.inputs import Source, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.rounding import round_to
from attnspec.spec.dtypes import FLOAT32, format_named
from attnspec.spec.errors import InputError

SPREAD = {"int8": 40.0, "e4m3": 120.0}  # of the quotients: the deviation of normal ones
FACTORS = {"usual": 1.0, "small": 2.0**-13, "beyond": 64.0}

GROUPS: dict[str, dict[str, str]] = {
    "One scale for the tensor.": {
        "quantise-int8-float32": "b=2/h=2/k=9/d=8/seed=1200",
        "quantise-int8-bfloat16": "h=2/k=9/d=16/dtype=bfloat16/seed=1201",
        "quantise-int8-float64": "k=9/d=16/dtype=float64/seed=1202",
        "quantise-e4m3-float32": "b=2/h=2/k=9/d=8/stored=e4m3/seed=1203",
        "quantise-e4m3-float16": "h=2/k=9/d=16/stored=e4m3/dtype=float16/seed=1204",
        "quantise-e4m3-float64": "k=9/d=16/stored=e4m3/dtype=float64/seed=1205",
    },
    "A scale for each head, channel or token.": {
        "quantise-head-float32": "b=2/h=3/k=5/d=8/scale=head/seed=1210",
        "quantise-batch-head-bfloat16": "b=2/h=3/k=5/d=8/scale=batch_head/stored=e4m3/dtype=bfloat16/seed=1211",
        "quantise-channel-float32": "b=2/h=2/k=8/d=8/scale=channel/seed=1212",
        "quantise-token-float16": "b=2/h=2/k=8/d=8/scale=token/dtype=float16/seed=1213",
        "quantise-token-e4m3-float32": "b=2/h=2/k=8/d=8/scale=token/stored=e4m3/seed=1214",
    },
    "Quotients that lie half-way between two stored numbers, exactly: the even one is right.": {
        "quantise-ties-int8-float32": "h=2/k=9/d=8/ties/seed=1220",
        "quantise-ties-int8-bfloat16": "h=2/k=9/d=8/ties/dtype=bfloat16/seed=1221",
        "quantise-ties-e4m3-float32": "h=2/k=9/d=8/ties/stored=e4m3/seed=1222",
        "quantise-ties-e4m3-float16": "h=2/k=9/d=8/ties/stored=e4m3/dtype=float16/seed=1223",
    },
    "Quotients beyond the range become its end, of either sign.": {
        "quantise-beyond-int8-float32": "h=2/k=9/d=8/size=beyond/seed=1230",
        "quantise-beyond-int8-float16": "h=2/k=9/d=8/size=beyond/scale=token/dtype=float16/seed=1231",
        "quantise-beyond-e4m3-float32": "h=2/k=9/d=8/size=beyond/stored=e4m3/seed=1232",
        "quantise-beyond-e4m3-bfloat16": "h=2/k=9/d=8/size=beyond/stored=e4m3/dtype=bfloat16/seed=1233",
    },
    "Quotients near 0: 0 in int8, and in e4m3 multiples of 2^-9.": {
        "quantise-small-int8-float32": "h=2/k=5/d=8/size=small/seed=1240",
        "quantise-small-e4m3-float32": "h=2/k=9/d=8/size=small/stored=e4m3/seed=1241",
        "quantise-small-e4m3-bfloat16": "h=2/k=9/d=8/size=small/stored=e4m3/dtype=bfloat16/seed=1242",
    },
}


@dataclass(frozen=True)
class QuantiseProblem(WordProblem):
    """Quantising. b, h, k, d: batch, heads, length, dim. stored: `int8` or `e4m3`. scale: what has a scale of its own.
    size: of the quotients, `usual`, `small` or `beyond` the range. ties: the scale is a power of two, and half of the
    quotients lie half-way between two stored numbers."""

    form: ClassVar[str] = "quantise"
    truths: ClassVar[tuple[str, ...]] = ("output",)
    leading: ClassVar[str] = "key"

    b: int = 1
    h: int = 1
    k: int = 1
    d: int = 8
    stored: str = "int8"
    scale: str = "tensor"
    size: str = "usual"
    ties: bool = False

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        for word, known in (("stored", tuple(STORED)), ("scale", GRAINS), ("size", tuple(FACTORS))):
            if getattr(self, word) not in known:
                raise InputError(f"{word} is {getattr(self, word)!r}: use one of {', '.join(known)}")

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the result."""
        dtype: torch.dtype = getattr(torch, STORED[self.stored])
        return dtype

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        shape = (self.b, self.h, self.k, self.d)
        scales = ("float32", scale_shape(self.scale, shape))
        return {"key": (self.dtype, shape), "key_scale": scales, "output": ("float64", shape)}

    def inputs(self) -> Tensors:
        """Return what is quantised, as `key`, and its scale."""
        draw, shapes, spread = Source(self.seed), self.shapes(), SPREAD[self.stored] * FACTORS[self.size]
        quotient = draw.normal("key", shapes["key"][1]) * spread
        scale = (0.25 + 1.75 * draw.uniform("key_scale", shapes["key_scale"][1])) / spread
        if self.ties:
            step = np.ldexp(1.0, np.frexp(quotient)[1] - E4M3.precision) if self.stored == "e4m3" else 1.0
            halves = draw.chance("halves", quotient.shape, 0.5) / 2
            quotient = np.clip((np.rint(quotient / step) + halves) * step, LOWEST[self.stored], LARGEST[self.stored])
            scale = np.full(scale.shape, 2.0**-5)
        scales = to_tensor(scale, FLOAT32).reshape(shapes["key_scale"][1])
        return {"key": to_tensor(quotient * scales.double().numpy(), format_named(self.dtype)), "key_scale": scales}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the stored numbers, as float64."""
        key, scale = (numbers(inputs[name]) for name in ("key", "key_scale"))
        pairs = zip(key.ravel().tolist(), np.broadcast_to(scale, key.shape).ravel().tolist(), strict=True)
        found = [stored_number(Fraction(x) / Fraction(s), self.stored) for x, s in pairs]
        return {"output": np.array(found).reshape(key.shape)}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        return ("quantised.rounding",)


def stored_number(quotient: Fraction, stored: str) -> float:
    """Return the number that a quotient becomes: cut to the range, rounded to nearest, ties to even (rule
    `quantised.rounding`)."""
    cut = min(max(quotient, Fraction(LOWEST[stored])), Fraction(LARGEST[stored]))
    return float(round(cut)) if stored == "int8" else round_to(cut, E4M3)
