"""Form `rope`: queries or keys rotated by their positions, and attention over what was rotated (chapter "rope")."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, numbers
from attnspec.golden.inputs import Source, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.rope import HALF_SPLIT, INTERLEAVED, Rope, rope_attention, rotate
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError

POSITIONS = ("counted", "batch", "restart", "scattered")
FAR = 1000  # a position from which on an angle in 16 bits is off by more than any budget

GROUPS: dict[str, dict[str, str]] = {
    "Tokens at positions 0, 1, 2, ..., every element of a token rotated, in both layouts.": {
        "rope-half-split-float32": "b=2/h=2/q=5/d=8/seed=1000",
        "rope-half-split-bfloat16": "h=2/q=9/d=16/dtype=bfloat16/seed=1001",
        "rope-half-split-float16": "h=2/q=9/d=16/dtype=float16/seed=1002",
        "rope-half-split-float64": "h=2/q=5/d=8/dtype=float64/seed=1003",
        "rope-interleaved-float32": "b=2/h=2/q=5/d=8/interleaved/seed=1004",
        "rope-interleaved-bfloat16": "h=2/q=9/d=16/interleaved/dtype=bfloat16/seed=1005",
        "rope-one-pair-float32": "q=5/d=2/seed=1006",
    },
    "A rotary dimension below the head dimension: the other elements keep their bits.": {
        "rope-partial-float32": "h=2/q=5/d=12/rotary_dim=4/seed=1010",
        "rope-partial-interleaved-float32": "h=2/q=5/d=12/rotary_dim=8/interleaved/seed=1011",
        "rope-partial-bfloat16": "h=2/q=5/d=24/rotary_dim=6/first=70/dtype=bfloat16/seed=1012",
        "rope-partial-odd-head-dim-float32": "q=5/d=7/rotary_dim=4/seed=1013",
    },
    "Another base than 10000.": {
        "rope-base-500000-float32": "h=2/q=5/d=12/base=500000/first=300/seed=1020",
        "rope-base-1000-interleaved-float16": "h=2/q=5/d=8/base=1000/interleaved/first=30/dtype=float16/seed=1021",
    },
    "Positions that do not begin at 0, that differ between the elements of a batch, begin again, or skip tokens.": {
        "rope-decode-float32": "b=2/h=2/q=1/d=8/first=9/seed=1030",
        "rope-decode-ragged-float32": "b=3/h=2/q=1/d=8/positions=batch/first=40/seed=1031",
        "rope-chunk-ragged-bfloat16": "b=3/h=2/q=5/d=8/positions=batch/first=70/dtype=bfloat16/seed=1032",
        "rope-packed-interleaved-float32": "h=2/q=9/d=8/positions=restart/interleaved/seed=1033",
        "rope-scattered-float32": "h=2/q=9/d=8/positions=scattered/first=200/seed=1034",
    },
    "Positions from 32767 to a million: an angle, a frequency or a position in 16 bits is off by radians.": {
        "rope-position-32767-float32": "h=2/q=3/d=16/first=32767/seed=1040",
        "rope-position-131071-bfloat16": "h=2/q=3/d=16/base=500000/first=131071/dtype=bfloat16/seed=1041",
        "rope-position-131071-interleaved-float16": "q=3/d=16/first=131071/interleaved/dtype=float16/seed=1042",
        "rope-position-million-float64": "q=2/d=16/base=1e+07/first=1000000/dtype=float64/seed=1043",
        "rope-position-1023-float32": "h=2/q=5/d=16/first=1023/seed=1044",
    },
    "Gradients turn back by the same angles.": {
        "rope-gradient-float32": "b=2/h=2/q=5/d=8/grad/seed=1050",
        "rope-gradient-partial-interleaved-bfloat16": (
            "b=2/q=5/d=12/rotary_dim=8/interleaved/positions=batch/first=30/grad/dtype=bfloat16/seed=1051"
        ),
        "rope-gradient-partial-float64": "q=5/d=8/rotary_dim=6/first=3/grad/dtype=float64/seed=1052",
        "rope-gradient-base-float32": "h=2/q=5/d=8/base=500000/first=9/grad/seed=1054",
        "rope-gradient-decode-float16": "b=2/h=2/q=1/d=8/first=17/grad/dtype=float16/seed=1053",
    },
    "Attention over rotated queries and keys: positions that all grow by one number change nothing.": {
        "rope-attention-float32": "h=2/q=5/d=8/keys=5/causal/seed=1060",
        "rope-attention-decode-bfloat16": "b=2/h=2/q=1/d=16/keys=9/first=8/causal/dtype=bfloat16/seed=1061",
        "rope-attention-shift-17-float32": "h=2/q=5/d=8/keys=7/shift=17/seed=1062",
        "rope-attention-shift-2046-interleaved-float32": "q=3/d=8/keys=7/first=4/interleaved/shift=2046/seed=1063",
        "rope-attention-shift-2046-partial-float64": (
            "q=3/d=8/rotary_dim=4/keys=5/first=2/shift=2046/causal/dtype=float64/seed=1064"
        ),
    },
}


@dataclass(frozen=True)
class RopeProblem(WordProblem):
    """A rotation. b, h, q, d: batch, heads, tokens, head_dim. rotary_dim: 0 is d. positions: `counted` from `first` on;
    `batch`: from a number of each batch element's own, `first` or less; `restart`: from 0, and again from 0 at every
    4th token; `scattered`: in no order, up to `first`. grad: a gradient flows back. keys: attention over so many keys,
    at positions 0, 1, 2, ..., with values of 3 elements; causal: no key of a later position is seen; shift: is added to
    the positions of queries and keys."""

    form: ClassVar[str] = "rope"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", "grad_query")

    b: int = 1
    h: int = 1
    q: int = 1
    d: int = 8
    rotary_dim: int = 0
    interleaved: bool = False
    base: float = 10000.0
    positions: str = "counted"
    first: int = 0
    grad: bool = False
    keys: int = 0
    causal: bool = False
    shift: int = 0

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.positions not in POSITIONS:
            raise InputError(f"positions is {self.positions!r}: use one of {', '.join(POSITIONS)}")
        if self.turned % 2 or not 2 <= self.turned <= self.d:
            raise InputError(f"rotary_dim is {self.turned}: use an even number from 2 to d, {self.d}")
        if self.keys and (self.grad or self.positions != "counted"):
            raise InputError("keys has no gradients and counted positions: leave grad and positions out")
        if (self.causal or self.shift) and not self.keys:
            raise InputError("causal and shift are of attention: use keys")

    @property
    def turned(self) -> int:
        """How many elements are rotated."""
        return self.rotary_dim or self.d

    @property
    def key_positions(self) -> torch.Tensor:
        """The positions of the keys, (keys,) int64."""
        return self.shift + torch.arange(self.keys)

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        tokens = (self.b, self.h, self.q, self.d)
        per_batch = self.positions == "batch"
        shapes: Shapes = {
            "query": (self.dtype, tokens),
            "positions": ("int32", (self.b, self.q) if per_batch else (self.q,)),
            "output": ("float64", (*tokens[:3], 3) if self.keys else tokens),
        }
        if self.keys:
            shapes |= {"key": (self.dtype, (self.b, self.h, self.keys, self.d)), "lse": ("float64", tokens[:3])}
            shapes["value"] = (self.dtype, (self.b, self.h, self.keys, 3))
        if self.grad:
            shapes |= {"grad_output": (self.dtype, tokens), "grad_query": ("float64", tokens)}
        return shapes

    def inputs(self) -> Tensors:
        """Return what is rotated, as `query`, and its positions; key and value of attention; grad_output."""
        draw, shapes = Source(self.seed), self.shapes()
        given = [name for name in ("query", "key", "value", "grad_output") if name in shapes]
        tensors = {name: to_tensor(draw.normal(name, shapes[name][1]), format_named(self.dtype)) for name in given}
        return tensors | {"positions": torch.from_numpy(self._positions(draw).astype(np.int32))}

    def _positions(self, draw: Source) -> npt.NDArray[np.int64]:
        """Return the position of each token, (q,) or (b, q)."""
        counted = np.arange(self.q)
        if self.positions == "batch":
            starts = (draw.uniform("starts", (self.b, 1)) * (self.first + 1)).astype(np.int64)
            starts[-1] = self.first
            return starts + counted
        if self.positions == "restart":
            return counted % 4
        if self.positions == "scattered":
            return (draw.uniform("positions", (self.q,)) * (self.first + 1)).astype(np.int64)
        return self.shift + self.first + counted

    def truth(self, inputs: Tensors) -> Arrays:
        """Return what `query` becomes and the gradient before the rotation, or the output and lse of attention."""
        rope = Rope(Fraction(self.base), self.turned, INTERLEAVED if self.interleaved else HALF_SPLIT)
        given = {name: numbers(tensor) for name, tensor in inputs.items()}
        if self.keys:
            query, key, value = (given[name] for name in ("query", "key", "value"))
            exact = rope_attention(query, key, value, rope, query_offset=self.first, is_causal=self.causal)
            return {"output": exact.output, "lse": exact.lse}
        places = np.broadcast_to(given["positions"], (self.b, self.q))
        found = {"output": _rotated(given["query"], places, rope)}
        if self.grad:
            found["grad_query"] = _rotated(given["grad_output"], -places, rope)
        return found

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "rope.rotation": True,
            "rope.layout": True,
            "rope.partial": self.turned < self.d,
            "rope.position": bool(self.first or self.keys) or self.positions != "counted",
            "rope.distance": bool(self.shift),
            "rope.precision": self.first + self.shift >= FAR,
            "rope.gradient": self.grad,
            "accuracy.rope-within-budget": True,
        }
        return tuple(rule for rule, decides in table.items() if decides)


def _rotated(x: npt.NDArray[np.float64], positions: npt.NDArray[np.int64], rope: Rope) -> npt.NDArray[np.float64]:
    """Return tokens (batch, heads, length, head_dim) rotated by positions (batch, length)."""
    out = np.zeros_like(x)
    for b, h in np.ndindex(x.shape[:2]):
        out[b, h] = rotate(x[b, h], positions[b].tolist(), rope)
    return out
