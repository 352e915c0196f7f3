"""Form `quantised`: attention over 8-bit keys and values, each a stored number times a scale, and the gradient of the
query (chapter "quantised")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, gradient_shapes, numbers
from attnspec.golden.inputs import Source, draw_lengths, round_once, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact import attention
from attnspec.reference.exact.backward import backward
from attnspec.spec.dtypes import FLOAT32, Format, format_named
from attnspec.spec.errors import InputError

STORED = {"int8": "int8", "e4m3": "float8_e4m3fn"}  # word: PyTorch's name
GRAINS = ("tensor", "head", "batch_head", "channel", "token")
LENGTHS = ("none", "ragged", "zero")
GRADS = ("", "output", "lse")
SPREAD, SMALL_SPREAD = 40.0, 2.0**-7  # of the stored numbers: the deviation of normal ones
LOWEST, LARGEST = {"int8": -128.0, "e4m3": -448.0}, {"int8": 127.0, "e4m3": 448.0}
E4M3 = Format("e4m3", 4, -6, 8, 8)

GROUPS: dict[str, dict[str, str]] = {
    "One scale for all keys, one for all values.": {
        "quantised-int8-float32": "b=2/hq=2/q=5/k=9/d=8/dv=6/seed=1100",
        "quantised-int8-bfloat16": "hq=2/q=5/k=17/d=16/dv=16/dtype=bfloat16/seed=1101",
        "quantised-int8-float64": "q=5/k=9/d=8/dv=6/dtype=float64/seed=1102",
        "quantised-e4m3-float32": "b=2/hq=2/q=5/k=9/d=8/dv=6/stored=e4m3/seed=1103",
        "quantised-e4m3-float16": "hq=2/q=5/k=17/d=16/dv=16/stored=e4m3/dtype=float16/seed=1104",
        "quantised-causal-float32": "hq=2/q=9/k=9/d=8/dv=6/causal/seed=1105",
        "quantised-softmax-scale-float32": "hq=2/q=5/k=9/d=8/dv=6/scale=-0.25/seed=1106",
        "quantised-one-key-bfloat16": "hq=2/q=3/k=1/d=8/dv=6/stored=e4m3/dtype=bfloat16/seed=1107",
    },
    "Stored numbers of e4m3 below its smallest normal one, 2^-6.": {
        "quantised-subnormal-e4m3-float32": "b=2/hq=2/q=5/k=9/d=8/dv=6/stored=e4m3/small/seed=1108",
    },
    "Every scale 1: the stored numbers stand for themselves. They reach both ends of the storage dtype.": {
        "quantised-ones-int8-float32": "hq=2/q=5/k=9/d=8/dv=6/ones/ends/scale=0.001/seed=1110",
        "quantised-ones-e4m3-float32": "hq=2/q=5/k=9/d=8/dv=6/stored=e4m3/ones/ends/scale=0.001/seed=1111",
        "quantised-ones-int8-float64": "q=5/k=9/d=8/dv=6/ones/ends/scale=0.001/dtype=float64/seed=1112",
    },
    "A scale for each head, or for each head of each batch element; query heads that share a head of the keys.": {
        "quantised-head-int8-float32": "b=2/hq=3/hkv=3/q=5/k=9/d=8/dv=6/key_scale=head/value_scale=head/seed=1120",
        "quantised-head-grouped-bfloat16": (
            "b=2/hq=4/hkv=2/q=5/k=9/d=8/dv=6/stored=e4m3/key_scale=head/value_scale=head/dtype=bfloat16/seed=1121"
        ),
        "quantised-batch-head-float16": (
            "b=2/hq=4/hkv=2/q=5/k=9/d=8/dv=6/key_scale=batch_head/value_scale=batch_head/dtype=float16/seed=1122"
        ),
        "quantised-batch-head-e4m3-float32": (
            "b=3/hq=2/hkv=2/q=3/k=9/d=8/dv=6/stored=e4m3/key_scale=batch_head/value_scale=batch_head/seed=1123"
        ),
    },
    "A scale for each channel or token: as many keys as channels, so that one can be taken for the other.": {
        "quantised-channel-float32": (
            "b=2/hq=2/hkv=2/q=5/k=8/d=8/dv=8/key_scale=channel/value_scale=channel/seed=1130"
        ),
        "quantised-token-float32": "b=2/hq=2/hkv=2/q=5/k=8/d=8/dv=8/key_scale=token/value_scale=token/seed=1131",
        "quantised-keys-by-channel-values-by-token-bfloat16": (
            "b=2/hq=4/hkv=2/q=5/k=8/d=8/dv=8/key_scale=channel/value_scale=token/dtype=bfloat16/seed=1132"
        ),
        "quantised-channel-token-e4m3-float16": (
            "b=2/hq=2/hkv=2/q=5/k=8/d=8/dv=8/stored=e4m3/key_scale=token/value_scale=channel/dtype=float16/seed=1133"
        ),
    },
    "Scales of heads, channels or tokens that are all equal: the numbers are those of one scale for the tensor.": {
        "quantised-equal-tensor-float32": "b=2/hq=2/q=5/k=8/d=8/dv=8/equal/seed=1140",
        "quantised-equal-head-float32": (
            "b=2/hq=2/q=5/k=8/d=8/dv=8/key_scale=head/value_scale=batch_head/equal/seed=1140"
        ),
        "quantised-equal-channel-float32": (
            "b=2/hq=2/q=5/k=8/d=8/dv=8/key_scale=channel/value_scale=channel/equal/seed=1140"
        ),
        "quantised-equal-token-bfloat16": (
            "b=2/hq=2/q=5/k=8/d=8/dv=8/key_scale=token/value_scale=token/equal/dtype=bfloat16/seed=1140"
        ),
    },
    "Keys that do not exist: their codes are NaN in e4m3 and large in int8, and their scales are NaN.": {
        "quantised-lengths-e4m3-float32": "b=3/hq=2/q=1/k=9/d=8/dv=6/stored=e4m3/lengths=ragged/seed=1150",
        "quantised-lengths-token-float32": (
            "b=3/hq=2/q=1/k=9/d=8/dv=6/key_scale=token/value_scale=token/lengths=ragged/seed=1151"
        ),
        "quantised-lengths-token-e4m3-bfloat16": (
            "b=3/hq=4/hkv=2/q=3/k=9/d=8/dv=6/stored=e4m3/key_scale=token/value_scale=token/lengths=zero"
            "/dtype=bfloat16/seed=1152"
        ),
        "quantised-lengths-zero-float16": (
            "b=3/hq=2/q=3/k=9/d=8/dv=6/value_scale=token/lengths=zero/dtype=float16/seed=1153"
        ),
    },
    "The gradient of the query, which is that over scale times stored number: stored numbers have none.": {
        "quantised-gradient-float32": "b=2/hq=2/q=4/k=7/d=8/dv=6/grad=output/seed=1160",
        "quantised-gradient-float64": (
            "hq=2/hkv=2/q=3/k=6/d=6/dv=4/stored=e4m3/key_scale=channel/value_scale=channel/grad=output/dtype=float64"
            "/seed=1161"
        ),
        "quantised-gradient-grouped-causal-bfloat16": (
            "b=2/hq=4/hkv=2/q=6/k=6/d=8/dv=6/stored=e4m3/key_scale=channel/value_scale=token/causal/grad=output"
            "/dtype=bfloat16/seed=1162"
        ),
        "quantised-gradient-heads-lse-float16": (
            "b=2/hq=2/q=4/k=7/d=8/dv=6/key_scale=batch_head/value_scale=head/scale=-0.25/grad=lse/dtype=float16"
            "/seed=1163"
        ),
        "quantised-gradient-lengths-lse-float32": (
            "b=3/hq=4/hkv=2/q=3/k=7/d=8/dv=6/stored=e4m3/key_scale=token/value_scale=channel/lengths=zero/grad=lse"
            "/seed=1164"
        ),
        "quantised-gradient-lengths-bfloat16": (
            "b=3/hq=2/q=1/k=9/d=8/dv=6/key_scale=channel/value_scale=token/lengths=ragged/grad=output/dtype=bfloat16"
            "/seed=1165"
        ),
    },
    "Gradients over scales of every other grain, and over more keys and rows than a tile of 16 or 64 has.": {
        "quantised-gradient-tiles-e4m3-float32": (
            "hq=2/q=18/k=71/d=4/dv=4/stored=e4m3/value_scale=head/grad=output/seed=1170"
        ),
        "quantised-gradient-head-e4m3-float32": (
            "b=2/hq=2/q=4/k=7/d=8/dv=6/stored=e4m3/key_scale=head/value_scale=batch_head/grad=output/seed=1171"
        ),
        "quantised-gradient-batch-head-e4m3-float32": (
            "b=2/hq=2/q=4/k=7/d=8/dv=6/stored=e4m3/key_scale=batch_head/grad=output/seed=1172"
        ),
        "quantised-gradient-head-channel-float32": (
            "b=2/hq=2/q=4/k=7/d=8/dv=6/key_scale=head/value_scale=channel/grad=output/seed=1173"
        ),
        "quantised-gradient-token-batch-head-float32": (
            "b=2/hq=2/q=4/k=7/d=8/dv=6/key_scale=token/value_scale=batch_head/grad=output/seed=1174"
        ),
    },
}


@dataclass(frozen=True)
class QuantisedProblem(WordProblem):
    """Attention over quantised keys and values.

    b, hq, hkv, q, k, d, dv: batch, query heads, key heads (0 is hq), q_len, k_len, head_dim, value_dim. stored: `int8`
    or `e4m3`. key_scale, value_scale: what has a scale of its own. ones: every scale is 1; equal: all scales of a
    tensor are one. ends: the stored numbers reach the ends of their dtype; small: they are about 2^-7. causal: row i
    sees no key j > i. scale: of the softmax, 0 is the default. lengths: how many keys of each batch element exist,
    `ragged` (all in the last), `zero` (the same, and none in the first). grad: `output`, or `lse` for both.
    """

    form: ClassVar[str] = "quantised"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", "grad_query")

    b: int = 1
    hq: int = 1
    hkv: int = 0
    q: int = 1
    k: int = 1
    d: int = 8
    dv: int = 8
    stored: str = "int8"
    key_scale: str = "tensor"
    value_scale: str = "tensor"
    ones: bool = False
    equal: bool = False
    ends: bool = False
    small: bool = False
    causal: bool = False
    scale: float = 0.0
    lengths: str = "none"
    grad: str = ""

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        scales = (("key_scale", GRAINS), ("value_scale", GRAINS))
        words = (("stored", tuple(STORED)), *scales, ("lengths", LENGTHS), ("grad", GRADS))
        for word, known in words:
            if getattr(self, word) not in known:
                raise InputError(f"{word} is {getattr(self, word)!r}: use one of {', '.join(known)}")
        if self.hq % self.kv_heads:
            raise InputError(f"hq is {self.hq} and hkv {self.kv_heads}: use a multiple")

    @property
    def kv_heads(self) -> int:
        """How many heads keys and values have."""
        return self.hkv or self.hq

    @property
    def spread(self) -> float:
        """The deviation of the stored numbers."""
        return SMALL_SPREAD if self.small else SPREAD

    @property
    def options(self) -> dict[str, Any]:
        """The options of the call that are no tensors, those that are not the default."""
        options = {"is_causal": self.causal, "scale": self.scale or None, "enable_gqa": self.kv_heads != self.hq}
        return {name: value for name, value in options.items() if value}

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        rows, keys = (self.b, self.hq, self.q), (self.b, self.kv_heads, self.k)
        shapes: Shapes = {
            "query": (self.dtype, (*rows, self.d)),
            "key": (STORED[self.stored], (*keys, self.d)),
            "value": (STORED[self.stored], (*keys, self.dv)),
            "key_scale": ("float32", scale_shape(self.key_scale, (*keys, self.d))),
            "value_scale": ("float32", scale_shape(self.value_scale, (*keys, self.dv))),
            "output": ("float64", (*rows, self.dv)),
            "lse": ("float64", rows),
        }
        if self.lengths != "none":
            shapes["key_lengths"] = ("int32", (self.b,))
        return shapes | gradient_shapes(shapes, self.dtype, ("query",), self.grad)

    def inputs(self) -> Tensors:
        """Return query, stored key and value, their scales, key_lengths, and what flows back."""
        draw, shapes = Source(self.seed), self.shapes()
        tensors: Tensors = {}
        for name in ("query", "grad_output", "grad_lse"):
            if name in shapes:
                dtype, shape = shapes[name]
                tensors[name] = to_tensor(draw.normal(name, shape), format_named(dtype))
        for name in ("key", "value"):
            tensors[name] = self._codes(draw, name, shapes[name][1])
            tensors[f"{name}_scale"] = self._scales(draw, f"{name}_scale", shapes[f"{name}_scale"][1])
        if self.lengths != "none":
            lengths = draw_lengths(draw, self.lengths, self.b, self.k)
            tensors["key_lengths"] = torch.from_numpy(lengths)
        return tensors

    def _codes(self, draw: Source, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return stored numbers: normal ones times `spread`, rounded."""
        lowest, largest = LOWEST[self.stored], LARGEST[self.stored]
        numbers = np.clip(draw.normal(name, shape) * self.spread, lowest, largest)
        if self.ends:
            numbers[..., :2, 0], numbers[..., :2, -1] = lowest, largest
        rounded = np.rint(numbers) if self.stored == "int8" else round_once(numbers, E4M3)
        return torch.from_numpy(rounded).to(getattr(torch, STORED[self.stored]))

    def _scales(self, draw: Source, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return scales of 1/4 to 2 over `spread`, or 1."""
        if self.ones:
            return torch.ones(shape)
        drawn = np.full(shape, draw.uniform(name, ())) if self.equal else draw.uniform(name, shape)
        return to_tensor((0.25 + 1.75 * drawn) / self.spread, FLOAT32).reshape(shape)

    def truth(self, inputs: Tensors) -> Arrays:
        """Return output and lse of attention over the products of scale and stored number, which float64 holds, and the
        gradient of the query where something flows back."""
        given = {name: numbers(tensor) for name, tensor in inputs.items()}
        key, value = (given[name].astype(np.float64) * given[f"{name}_scale"] for name in ("key", "value"))
        options = self.options | {"key_lengths": given.get("key_lengths")}
        exact = attention(given["query"], key, value, **options)
        results = {"output": exact.output, "lse": exact.lse}
        if self.grad:
            options["grad_lse"] = given.get("grad_lse")
            results["grad_query"] = backward(given["query"], key, value, given["grad_output"], **options).query
        return results

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "quantised.dequantise": True,
            "quantised.granularity": self.equal,
            "quantised.absent": self.lengths != "none",
            "quantised.backward": bool(self.grad),
            "mask.visible-nan": self.stored == "e4m3" and not self.causal and self.lengths == "none",
            "key-lengths.absent": self.lengths != "none",
            "key-lengths.zero": self.lengths == "zero",
            "grouped.head-map": self.kv_heads != self.hq,
            "accuracy.quantised-within-budget": True,
        }
        return tuple(rule for rule, decides in table.items() if decides)


def scale_shape(grain: str, shape: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Return the shape of scales for a tensor of this shape (rule `quantised.scale-shape`)."""
    batch, heads, length, dim = shape
    shapes: dict[str, tuple[int, ...]] = {"tensor": (), "head": (1, heads, 1, 1), "batch_head": (batch, heads, 1, 1)}
    shapes |= {"channel": (1, heads, 1, dim), "token": (batch, heads, length, 1)}
    return shapes[grain]
