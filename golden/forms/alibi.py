"""Form `alibi`: an attention call with slopes of ALiBi, its output and lse (chapter "position-bias")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from attnspec.golden.forms.alibi_bias import CORNERS, LENGTHS, SIDES, SLOPES, AlibiBiasProblem
from attnspec.golden.forms.form import Arrays, Refusal, Tensors, WordProblem, numbers
from attnspec.golden.inputs import Source, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.attention import attention
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError

GARBAGE = 64.0  # times the usual size: what keys and values hold beyond a length

GROUPS: dict[str, dict[str, str]] = {
    "Slopes of the table over as many queries as keys, with the triangle and without.": {
        "alibi-causal-float32": "b=2/hq=4/hkv=4/q=9/k=9/d=8/causal/seed=1300",
        "alibi-causal-bfloat16": "hq=4/hkv=4/q=9/k=9/d=8/causal/dtype=bfloat16/seed=1301",
        "alibi-symmetric-float32": "hq=4/hkv=4/q=7/k=7/d=8/seed=1302",
        "alibi-symmetric-float16": "hq=3/hkv=3/q=7/k=7/d=8/dtype=float16/seed=1303",
        "alibi-signed-float32": "hq=4/hkv=4/q=7/k=7/d=8/side=signed/seed=1304",
        "alibi-signed-float64": "hq=2/hkv=2/q=5/k=5/d=8/side=signed/dtype=float64/seed=1305",
    },
    "Heads that share a key: the slope is that of the query head.": {
        "alibi-grouped-float32": "hq=6/hkv=2/q=5/k=7/d=8/causal/seed=1310",
        "alibi-one-key-head-bfloat16": "hq=4/hkv=1/q=5/k=7/d=8/dtype=bfloat16/seed=1311",
    },
    "Another number of queries than of keys, from both corners, and a bias measured from the other corner.": {
        "alibi-wide-float32": "hq=2/hkv=2/q=3/k=11/d=8/seed=1320",
        "alibi-wide-lower-right-float32": "hq=2/hkv=2/q=3/k=11/d=8/corner=lower_right/seed=1321",
        "alibi-wide-causal-lower-right-float32": "hq=2/hkv=2/q=3/k=11/d=8/causal/corner=lower_right/seed=1322",
        "alibi-tall-causal-lower-right-float32": "hq=2/hkv=2/q=7/k=4/d=8/causal/corner=lower_right/seed=1323",
        "alibi-other-corner-float32": (
            "hq=2/hkv=2/q=3/k=11/d=8/causal/corner=lower_right/measured=upper_left/seed=1324"
        ),
        "alibi-other-corner-signed-float32": (
            "hq=2/hkv=2/q=3/k=11/d=8/causal/corner=lower_right/side=signed/measured=upper_left/seed=1325"
        ),
    },
    "Decoding: the diagonal ends at the length of each batch element.": {
        "alibi-decode-float32": "b=3/hq=4/hkv=2/q=1/k=17/d=8/corner=lower_right/lengths=ragged/seed=1330",
        "alibi-decode-bfloat16": (
            "b=3/hq=4/hkv=2/q=2/k=17/d=8/causal/corner=lower_right/lengths=ragged/dtype=bfloat16/seed=1331"
        ),
        "alibi-empty-cache-float32": "b=2/hq=2/hkv=2/q=2/k=9/d=8/corner=lower_right/lengths=zero/seed=1332",
    },
    "Slopes of each batch element, of any sign, 0 among them; long rows, in which far keys vanish.": {
        "alibi-drawn-float32": "hq=4/hkv=4/q=5/k=9/d=8/slopes=drawn/seed=1340",
        "alibi-of-batch-float32": "b=3/hq=2/hkv=2/q=5/k=9/d=8/slopes=drawn/batched/seed=1341",
        "alibi-long-float32": "hq=8/hkv=8/q=1/k=300/d=8/corner=lower_right/seed=1342",
        "alibi-large-scores-float32": "hq=4/hkv=4/q=9/k=9/d=8/causal/scores=6/seed=1343",
        "alibi-scale-float32": "hq=4/hkv=4/q=7/k=7/d=8/causal/scale=1.5/seed=1344",
    },
}


def _of_slopes(name: str, case: str, note: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Refusal:
    return Refusal(
        f"alibi-refuses-{name}",
        case,
        "alibi.shape",
        note,
        inputs=lambda inputs: inputs | {"alibi_slopes": torch.ones(shape, dtype=dtype)},
    )


REFUSALS = (
    _of_slopes("slopes-of-the-key-heads", "alibi-grouped-float32", "there are 2 slopes and 6 query heads", (2,)),
    _of_slopes("one-slope", "alibi-symmetric-float32", "there is 1 slope and 4 query heads", (1,)),
    _of_slopes("another-batch", "alibi-causal-float32", "the slopes have batch 3, the query 2", (3, 4)),
    _of_slopes("integer-slopes", "alibi-symmetric-float32", "the slopes are integers", (4,), torch.int32),
)


@dataclass(frozen=True)
class AlibiProblem(WordProblem):
    """Attention with slopes. b, hq, hkv, q, k, d: batch, q_heads, kv_heads, q_len, k_len, head_dim. side: the dialect
    `alibi_form`; corner: the diagonal of triangle and bias; measured: of the bias, where it is another. slopes,
    batched, lengths: those of `AlibiBiasProblem`; beyond lengths keys and values are large. scale: 0 is the default.
    scores: factor on the query."""

    form: ClassVar[str] = "alibi"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse")

    b: int = 1
    hq: int = 1
    hkv: int = 1
    q: int = 1
    k: int = 1
    d: int = 8
    causal: bool = False
    side: str = "symmetric"
    corner: str = "upper_left"
    measured: str = ""
    slopes: str = "table"
    batched: bool = False
    lengths: str = "none"
    scale: float = 0.0
    scores: float = 1.0

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        given = ((self.side, SIDES), (self.corner, CORNERS), (self.slopes, SLOPES), (self.lengths, LENGTHS))
        for word, known in (*given, (self.measured, ("", *CORNERS))):
            if word not in known:
                raise InputError(f"{word!r} is unknown: use one of {', '.join(known)}")
        if self.hkv < 1 or self.hq % self.hkv:
            raise InputError(f"hq is {self.hq}, hkv {self.hkv}: use a multiple")

    @property
    def of_bias(self) -> AlibiBiasProblem:
        """The problem of the bias, with slopes and lengths of the same numbers."""
        each = self.batched or self.lengths != "none"
        return AlibiBiasProblem(
            dtype="float64" if self.dtype == "float64" else "float32",
            seed=self.seed,
            b=self.b if each else 1,
            h=self.hq,
            q=self.q,
            k=self.k,
            side=self.side,
            corner=self.measured or self.corner,
            slopes=self.slopes,
            batched=self.batched,
            lengths=self.lengths,
        )

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        rows, keys = (self.b, self.hq, self.q), (self.b, self.hkv, self.k, self.d)
        shapes: Shapes = {
            "query": (self.dtype, (*rows, self.d)),
            "key": (self.dtype, keys),
            "value": (self.dtype, keys),
            "output": ("float64", (*rows, self.d)),
            "lse": ("float64", rows),
        }
        return shapes | {name: spec for name, spec in self.of_bias.shapes().items() if name != "bias"}

    def inputs(self) -> Tensors:
        """Return query, key, value, alibi_slopes (float32, or float64) and key_lengths."""
        draw, shapes, fmt = Source(self.seed), self.shapes(), format_named(self.dtype)
        tensors = self.of_bias.inputs()
        drawn = {name: draw.normal(name, shapes[name][1]) for name in ("query", "key", "value")}
        drawn["query"] = drawn["query"] * self.scores
        if "key_lengths" in tensors:
            absent = np.arange(self.k)[:, None] >= tensors["key_lengths"].numpy()[:, None, None, None]
            drawn |= {name: np.where(absent, drawn[name] * GARBAGE, drawn[name]) for name in ("key", "value")}
        return {name: to_tensor(x, fmt) for name, x in drawn.items()} | tensors

    def truth(self, inputs: Tensors) -> Arrays:
        """Return output and lse: the exact attention under the exact bias."""
        lengths = inputs.get("key_lengths")
        found = attention(
            *(numbers(inputs[name]) for name in ("query", "key", "value")),
            attn_mask=self.of_bias.truth(inputs)["bias"],
            is_causal=self.causal,
            causal_alignment=self.corner,
            scale=self.scale or None,
            enable_gqa=self.hq != self.hkv,
            key_lengths=None if lengths is None else lengths.numpy(),
        )
        return {"output": found.output, "lse": found.lse}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        causal = self.causal and (self.measured or self.corner) == self.corner
        table = {
            "alibi.bias": True,
            "alibi.form": not causal and (self.corner == "upper_left" or self.q > 1),
            "alibi.offset": self.q != self.k or self.lengths != "none",
            "grouped.head-map": self.hq != self.hkv,
            "key-lengths.visible": self.lengths != "none",
            "key-lengths.zero": self.lengths == "zero",
            "mask.fully-masked-row": self.lengths == "zero",
            "mask.causal-upper-left": self.causal and self.corner == "upper_left",
            "attention.scale-explicit": bool(self.scale),
            "accuracy.alibi-within-budget": True,
        }
        return tuple(rule for rule, decides in table.items() if decides)
