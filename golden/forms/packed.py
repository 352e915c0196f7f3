"""Form `packed`: sequences laid end to end, each attending over its own keys, forward and backward (chapter
"packed")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, gradient_shapes, numbers
from attnspec.golden.inputs import Source, draw_tokens
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact import attention
from attnspec.reference.exact.backward import backward
from attnspec.spec.errors import InputError

CORNERS = ("upper_left", "lower_right")
LEAVES = ("query", "key", "value")

GROUPS: dict[str, dict[str, str]] = {
    "Members of different lengths: each row sees the keys of its own member.": {
        "packed-ragged-float32": "q=3.1.5/k=4.6.5/hq=2/seed=800",
        "packed-ragged-float64": "q=2.5/k=7.3/dtype=float64/seed=801",
        "packed-ragged-bfloat16": "q=5.9.3/k=9.4.17/hq=2/d=24/dtype=bfloat16/seed=802",
        "packed-ragged-float16": "q=5.1.4/k=3.9.7/hq=2/d=24/dtype=float16/seed=803",
        "packed-self-float32": "q=4.7.1/hq=2/seed=804",
        "packed-one-member-float32": "q=5/k=9/hq=2/seed=805",
        "packed-around-16-float32": "q=1.15.16.17/k=17.1.16.15/seed=806",
        "packed-grouped-float32": "q=3.2/k=4.5/hq=4/hkv=2/seed=807",
        "packed-multi-query-bfloat16": "q=4.3/k=9.5/hq=3/hkv=1/dtype=bfloat16/seed=808",
        "packed-value-dim-float32": "q=3.2/k=4.5/hq=2/dv=24/seed=809",
        "packed-scale-negative-float32": "q=3.2/k=4.5/scale=-0.7/seed=810",
        "packed-large-scores-float32": "q=5.4/k=9.6/scores=8/seed=811",
        "packed-far-below-zero-float32": "q=5.4/k=9.6/shift=-200/seed=812",
    },
    "Members without queries, without keys, or without either, anywhere in the pack.": {
        "packed-zero-first-float32": "q=0.4.3/k=0.5.2/seed=820",
        "packed-zero-between-float32": "q=3.0.0.2/k=4.0.0.3/hq=2/seed=821",
        "packed-zero-last-bfloat16": "q=3.2.0/k=4.5.0/dtype=bfloat16/seed=822",
        "packed-no-queries-float32": "q=2.0.1/k=1.4.2/seed=823",
        "packed-empty-member-float32": "q=2.3.1/k=3.0.2/hq=2/seed=824",
        "packed-empty-all-float32": "q=2.1/k=0.0/hq=2/seed=825",
    },
    "The diagonal, and the window around it, is that of each member, wherever it lies in the pack.": {
        "packed-causal-self-float32": "q=4.7.1/hq=2/causal=upper_left/seed=830",
        "packed-causal-upper-left-float32": "q=3.1.5.2/k=5.4.2.3/causal=upper_left/seed=831",
        "packed-causal-lower-right-float32": "q=3.1.2.2/k=5.4.6.3/causal=lower_right/seed=832",
        "packed-causal-lower-right-empty-rows-bfloat16": "q=3.5/k=5.2/hq=2/causal=lower_right/dtype=bfloat16/seed=833",
        "packed-window-float32": "q=7.5/hq=2/window=2.1/seed=834",
        "packed-window-causal-lower-right-float32": "q=3.6/k=8.9/causal=lower_right/window=3.2/seed=835",
    },
    "Only the first keys of a member exist; tokens behind the last boundary belong to none.": {
        "packed-lengths-float32": "q=3.1.2/k=5.4.6/hq=2/lengths=2.1.6/seed=840",
        "packed-lengths-empty-member-float32": "q=3.2.2/k=5.4.6/lengths=5.0.3/seed=841",
        "packed-lengths-causal-lower-right-float16": (
            "q=2.1.3/k=5.4.6/hq=2/causal=lower_right/lengths=3.4.5/dtype=float16/seed=842"
        ),
        "packed-lengths-window-causal-float32": (
            "q=4.3/k=9.8/hq=2/causal=lower_right/window=2.-1/lengths=7.6/seed=844"
        ),
        "packed-lengths-window-upper-left-bfloat16": (
            "q=5.3/k=9.8/hq=2/causal=upper_left/window=1.-1/lengths=4.8/dtype=bfloat16/seed=845"
        ),
        "packed-tail-float32": "q=3.2/k=4.5/hq=2/tail=3/seed=843",
    },
    "Gradients are those of each member: none passes a boundary, and absent keys and the tail have none.": {
        "packed-gradients-float32": "q=3.1.5/k=4.6.5/hq=2/grad=output/seed=850",
        "packed-gradients-float64": "q=2.5/k=7.3/grad=output/dtype=float64/seed=851",
        "packed-gradients-bfloat16": "q=5.9.3/k=9.4.7/hq=2/grad=output/dtype=bfloat16/seed=852",
        "packed-gradients-grouped-causal-float32": "q=3.4/k=5.2/hq=4/hkv=2/causal=lower_right/grad=output/seed=853",
        "packed-gradients-empty-member-float32": "q=2.3.0.1/k=3.0.2.2/grad=output/seed=854",
        "packed-gradients-lse-float32": "q=3.4/k=5.2/hq=2/grad=lse/seed=855",
        "packed-gradients-lengths-tail-float32": "q=3.2/k=5.4/hq=2/lengths=2.4/tail=2/grad=output/seed=856",
        "packed-gradients-window-float32": "q=7.5/hq=2/window=2.1/grad=output/seed=858",
        "packed-gradients-window-causal-lower-right-float16": (
            "q=3.6/k=8.9/hq=2/causal=lower_right/window=3.2/grad=lse/dtype=float16/seed=859"
        ),
        "packed-gradients-far-below-zero-float32": "q=5.4/k=9.6/shift=-200/grad=output/seed=857",
    },
}


@dataclass(frozen=True)
class PackedProblem(WordProblem):
    """A pack. q, k, lengths, window: numbers with `.` between them. q, k: how many queries and keys each member has;
    k without numbers is q. hq, hkv, d, dv: heads and dims; hkv 0 is hq, dv 0 is d. causal: a corner. lengths: the
    key_lengths. window: left and right. tail: tokens behind the last boundary. grad: `output`, or `lse` for both.
    scores: factor on the queries; shift: added to every score."""

    form: ClassVar[str] = "packed"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", "grad_query", "grad_key", "grad_value")

    q: str = "1"
    k: str = ""
    hq: int = 1
    hkv: int = 0
    d: int = 8
    dv: int = 0
    causal: str = ""
    scale: str = ""
    window: str = ""
    lengths: str = ""
    tail: int = 0
    scores: float = 1.0
    shift: float = 0.0
    grad: str = ""

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.causal not in ("", *CORNERS) or self.grad not in ("", "output", "lse"):
            raise InputError(f"causal is {self.causal!r} and grad {self.grad!r}: use {CORNERS}, output or lse")
        given = self.key_lengths or self.keys
        if not len(self.queries) == len(self.keys) == len(given):
            raise InputError(f"q is {self.q!r}, k {self.k!r}, lengths {self.lengths!r}: use a number for each member")
        if min((*self.queries, *self.keys, *given)) < 0 or any(n > k for n, k in zip(given, self.keys, strict=True)):
            raise InputError(f"lengths is {self.lengths!r} of k {self.k!r}: use 0 to the number of keys")
        if self.window and len(whole(self.window)) != 2:
            raise InputError(f"window is {self.window!r}: use two numbers")

    @property
    def queries(self) -> list[int]:
        """How many queries each member has."""
        return whole(self.q)

    @property
    def keys(self) -> list[int]:
        """How many keys each member has."""
        return whole(self.k or self.q)

    @property
    def key_lengths(self) -> list[int] | None:
        """How many keys of each member exist, or None."""
        return whole(self.lengths) if self.lengths else None

    @property
    def options(self) -> dict[str, Any]:
        """The options of the call that are no tensors."""
        found: dict[str, Any] = {"is_causal": bool(self.causal), "causal_alignment": self.causal or CORNERS[0]}
        found["scale"] = float(self.scale) if self.scale else None
        left, right = whole(self.window) if self.window else (-1, -1)
        return found | {"window_size": (left, right) if self.window else None}

    def members(self) -> Iterator[tuple[slice, slice]]:
        """Yield where the queries and the keys in use of each member lie."""
        starts = zip(pairwise(boundaries(self.queries)), boundaries(self.keys), strict=False)
        for ((start, end), first), n in zip(starts, self.key_lengths or self.keys, strict=True):
            yield slice(start, end), slice(first, first + n)

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        total_q, total_k = sum(self.queries) + self.tail, sum(self.keys) + self.tail
        kv_heads, value_dim = self.hkv or self.hq, self.dv or self.d
        batch = len(self.queries)
        shapes: Shapes = {
            "query": (self.dtype, (total_q, self.hq, self.d)),
            "key": (self.dtype, (total_k, kv_heads, self.d)),
            "value": (self.dtype, (total_k, kv_heads, value_dim)),
            "cu_seqlens_q": ("int32", (batch + 1,)),
            "cu_seqlens_k": ("int32", (batch + 1,)),
            "output": ("float64", (total_q, self.hq, value_dim)),
            "lse": ("float64", (self.hq, total_q)),
        }
        if self.lengths:
            shapes["key_lengths"] = ("int32", (batch,))
        return shapes | gradient_shapes(shapes, self.dtype, LEAVES, self.grad)

    def inputs(self) -> Tensors:
        """Return the tensors of the pack, its boundaries, its lengths, and what flows back."""
        scale = float(self.scale) if self.scale else self.d**-0.5
        shapes = {name: given for name, given in self.shapes().items() if name in (*LEAVES, "grad_output", "grad_lse")}
        tensors = draw_tokens(Source(self.seed), shapes, self.scores, self.shift, scale)
        listed = {"cu_seqlens_q": boundaries(self.queries), "cu_seqlens_k": boundaries(self.keys)}
        if self.key_lengths is not None:
            listed["key_lengths"] = self.key_lengths
        return tensors | {name: torch.tensor(given, dtype=torch.int32) for name, given in listed.items()}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the true results, those of each member by itself; 0 and an lse of -inf behind the last boundary."""
        x = {name: numbers(tensor) for name, tensor in inputs.items()}
        found = {name: np.zeros(self.shapes()[name][1]) for name in self.truths if name in self.shapes()}
        found["lse"][:] = -np.inf
        for queries, keys in self.members():
            query, key, value = alone(x["query"], queries), alone(x["key"], keys), alone(x["value"], keys)
            exact = attention(query, key, value, enable_gqa=True, **self.options)
            found["output"][queries] = exact.output[0].swapaxes(0, 1)
            found["lse"][:, queries] = exact.lse[0]
            if not self.grad:
                continue
            grad_lse = x["grad_lse"][None, :, queries] if self.grad == "lse" else None
            flow = alone(x["grad_output"], queries)
            given = backward(query, key, value, flow, grad_lse=grad_lse, enable_gqa=True, **self.options)
            for name, place in zip(LEAVES, (queries, keys, keys), strict=True):
                found[f"grad_{name}"][place] = getattr(given, name)[0].swapaxes(0, 1)
        return found

    def _hides_rows(self) -> bool:
        """Whether the diagonal at the lower right leaves a row of a member that has keys without one."""
        there = self.key_lengths or self.keys
        return any(queries > keys > 0 for queries, keys in zip(self.queries, there, strict=True))

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "packed.zero-length": 0 in (*self.queries, *(self.key_lengths or self.keys)),
            "mask.fully-masked-row": self.causal == "lower_right" and self._hides_rows(),
            "packed.causal": bool(self.causal),
            "packed.window": bool(self.window),
            "packed.key-lengths": bool(self.lengths),
            "packed.tail": self.tail > 0,
            "packed.backward": bool(self.grad),
            "packed.separate": True,
            "grouped.head-map": self.hkv not in (0, self.hq),
            "attention.value-dim": bool(self.dv),
            "attention.scale-explicit": bool(self.scale),
            "accuracy.output-within-budget": True,
            "accuracy.lse-within-budget": True,
            "accuracy.gradients-within-budget": bool(self.grad),
        }
        return tuple(rule for rule, decides in table.items() if decides)


def alone(tokens: npt.NDArray[Any], place: slice) -> npt.NDArray[Any]:
    """Return some tokens of a pack, (total, heads, dim), as a batch of one sequence, (1, heads, length, dim)."""
    return tokens[place].swapaxes(0, 1)[None]


def boundaries(lengths: list[int]) -> list[int]:
    """Return cumulative lengths, from 0 on."""
    return [0, *accumulate(lengths)]


def whole(text: str) -> list[int]:
    """Return whole numbers with `.` between them. Raises InputError for anything else."""
    try:
        return [int(number) for number in text.split(".")]
    except ValueError:
        raise InputError(f"{text!r} is no list of whole numbers: use them with '.' between them, as in 3.0.4") from None
