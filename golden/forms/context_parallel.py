"""Form `context_parallel`: one sequence whose tokens lie on several ranks, forward and backward (chapter
"context-parallel")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, gradient_shapes, numbers
from attnspec.golden.inputs import Source, draw_tokens
from attnspec.golden.shapes import Shapes
from attnspec.reference.context_parallel import shards
from attnspec.reference.exact import attention
from attnspec.reference.exact.backward import backward
from attnspec.spec.errors import InputError

CORNERS = ("upper_left", "lower_right")
DEALS = ("contiguous", "zigzag", "striped", "shuffled")
LEAVES = ("query", "key", "value")

GROUPS: dict[str, dict[str, str]] = {
    "Any deal of the positions, and any number of ranks, gives the result of one call.": {
        "context-parallel-one-rank-float32": "q=7/k=9/ranks=1/hq=2/seed=1000",
        "context-parallel-contiguous-float32": "q=10/k=13/ranks=3/hq=2/seed=1001",
        "context-parallel-zigzag-float32": "q=13/k=13/ranks=3/deal=zigzag/hq=2/seed=1002",
        "context-parallel-striped-float32": "q=11/k=14/ranks=4/deal=striped/seed=1003",
        "context-parallel-shuffled-float64": "q=9/k=12/ranks=4/deal=shuffled/dtype=float64/seed=1004",
        "context-parallel-shuffled-bfloat16": "q=9/k=23/ranks=3/deal=shuffled/hq=2/d=24/dtype=bfloat16/seed=1005",
        "context-parallel-zigzag-float16": "q=12/k=20/ranks=2/deal=zigzag/hq=2/d=24/dtype=float16/seed=1006",
        "context-parallel-more-ranks-than-keys-float32": "q=3/k=4/ranks=6/seed=1007",
        "context-parallel-decode-float32": "q=1/k=29/ranks=4/hq=4/hkv=1/seed=1008",
        "context-parallel-grouped-float32": "q=8/k=11/ranks=3/deal=striped/hq=4/hkv=2/dv=5/seed=1009",
    },
    "The diagonal and masks go by positions in the whole sequence.": {
        "context-parallel-causal-contiguous-float32": "q=12/k=12/ranks=4/causal=upper_left/seed=1010",
        "context-parallel-causal-zigzag-float32": "q=16/k=16/ranks=4/deal=zigzag/hq=2/causal=upper_left/seed=1011",
        "context-parallel-causal-striped-bfloat16": (
            "q=13/k=13/ranks=3/deal=striped/hq=2/d=24/causal=upper_left/dtype=bfloat16/seed=1012"
        ),
        "context-parallel-causal-shuffled-float32": "q=9/k=14/ranks=3/deal=shuffled/causal=upper_left/seed=1013",
        "context-parallel-causal-lower-right-float32": "q=5/k=17/ranks=3/deal=zigzag/causal=lower_right/seed=1014",
        "context-parallel-causal-empty-rows-float32": "q=12/k=5/ranks=3/causal=lower_right/seed=1015",
        "context-parallel-mask-float32": "q=9/k=13/ranks=3/deal=zigzag/hq=2/mask=random/seed=1016",
        "context-parallel-padding-float32": "q=9/k=15/ranks=4/mask=padding/scale=0.3/seed=1017",
        "context-parallel-far-apart-float32": "q=6/k=12/ranks=3/deal=striped/scores=30/seed=1018",
        "context-parallel-far-below-zero-float32": "q=6/k=12/ranks=3/shift=-200/seed=1019",
    },
    "Gradients sum over the parts of a query and over the readers of a key.": {
        "context-parallel-gradients-float32": "q=10/k=13/ranks=3/hq=2/grad=output/seed=1020",
        "context-parallel-gradients-float64": "q=7/k=9/ranks=3/deal=zigzag/grad=output/dtype=float64/seed=1021",
        "context-parallel-gradients-zigzag-causal-float32": (
            "q=12/k=12/ranks=3/deal=zigzag/hq=2/causal=upper_left/grad=output/seed=1022"
        ),
        "context-parallel-gradients-striped-bfloat16": (
            "q=12/k=12/ranks=3/deal=striped/hq=2/d=24/causal=upper_left/dtype=bfloat16/grad=output/seed=1023"
        ),
        "context-parallel-gradients-grouped-lse-float32": "q=8/k=11/ranks=3/hq=4/hkv=2/grad=lse/seed=1024",
        "context-parallel-gradients-empty-rows-float32": (
            "q=9/k=4/ranks=3/deal=shuffled/causal=lower_right/grad=output/seed=1025"
        ),
        "context-parallel-gradients-far-below-zero-float32": "q=6/k=12/ranks=3/shift=-200/grad=output/seed=1026",
    },
}


@dataclass(frozen=True)
class ContextParallelProblem(WordProblem):
    """A sequence and its deal. q, k: queries and keys; ranks: shards of each; deal: `contiguous`, `zigzag`, `striped`
    as `attnspec.reference.context_parallel.shards` deals them, or `shuffled`, at random, the first shard empty. hq,
    hkv, d, dv: heads and dims; hkv 0 is hq, dv 0 is d. causal: a corner. mask: bool, `random` or `padding`. scores:
    factor on the queries; shift: added to every score. grad: `output`, or `lse` for both."""

    form: ClassVar[str] = "context_parallel"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", "grad_query", "grad_key", "grad_value")

    q: int = 1
    k: int = 1
    ranks: int = 1
    deal: str = "contiguous"
    hq: int = 1
    hkv: int = 0
    d: int = 8
    dv: int = 0
    causal: str = ""
    mask: str = ""
    scale: str = ""
    scores: float = 1.0
    shift: float = 0.0
    grad: str = ""

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        for name, value, known in (
            ("deal", self.deal, DEALS),
            ("causal", self.causal, ("", *CORNERS)),
            ("mask", self.mask, ("", "random", "padding")),
            ("grad", self.grad, ("", "output", "lse")),
        ):
            if value not in known:
                raise InputError(f"{name} is {value!r}: use one of {', '.join(x for x in known if x)}")
        if self.ranks < 1:
            raise InputError("ranks is 0: use 1 or more")

    @property
    def options(self) -> dict[str, Any]:
        """The options of the call that are no tensors."""
        scale = float(self.scale) if self.scale else None
        return {"is_causal": bool(self.causal), "causal_alignment": self.causal or CORNERS[0], "scale": scale}

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        kv_heads, value_dim = self.hkv or self.hq, self.dv or self.d
        shapes: Shapes = {
            "query": (self.dtype, (1, self.hq, self.q, self.d)),
            "key": (self.dtype, (1, kv_heads, self.k, self.d)),
            "value": (self.dtype, (1, kv_heads, self.k, value_dim)),
            "query_positions": ("int32", (self.q,)),
            "query_counts": ("int32", (self.ranks,)),
            "key_positions": ("int32", (self.k,)),
            "key_counts": ("int32", (self.ranks,)),
            "output": ("float64", (1, self.hq, self.q, value_dim)),
            "lse": ("float64", (1, self.hq, self.q)),
        }
        if self.mask:
            shapes["attn_mask"] = ("bool", (1, 1, self.q, self.k))
        return shapes | gradient_shapes(shapes, self.dtype, LEAVES, self.grad)

    def inputs(self) -> Tensors:
        """Return the whole sequence, the positions that each rank holds, one rank after the other, how many each
        holds, the mask, and what flows back."""
        draw, scale = Source(self.seed), float(self.scale) if self.scale else self.d**-0.5
        shapes = {name: given for name, given in self.shapes().items() if name in (*LEAVES, "grad_output", "grad_lse")}
        tensors = draw_tokens(draw, shapes, self.scores, self.shift, scale)
        for name, length in (("query", self.q), ("key", self.k)):
            held = self._dealt(draw, name, length)
            tensors[f"{name}_positions"] = torch.cat(held).int()
            tensors[f"{name}_counts"] = torch.tensor([len(shard) for shard in held], dtype=torch.int32)
        if self.mask == "random":
            tensors["attn_mask"] = torch.from_numpy(draw.chance("attn_mask", (1, 1, self.q, self.k), 0.6))
        if self.mask == "padding":
            kept = torch.arange(self.k) < self.k // 2
            tensors["attn_mask"] = kept.broadcast_to(1, 1, self.q, self.k).contiguous()
        return tensors

    def _dealt(self, draw: Source, name: str, length: int) -> list[torch.Tensor]:
        """Return the positions that each rank holds."""
        if self.deal != "shuffled":
            return shards(length, self.ranks, self.deal)
        order = torch.from_numpy(np.argsort(draw.uniform(f"{name}_order", (length,)), kind="stable"))
        cuts = np.sort((draw.uniform(f"{name}_cuts", (max(self.ranks - 2, 0),)) * (length + 1)).astype(np.int64))
        return list(order.tensor_split([0, *cuts.tolist()][: self.ranks - 1]))

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the true results, those of one call over the whole sequence."""
        x = {name: numbers(tensor) for name, tensor in inputs.items()}
        query, key, value = (x[name] for name in LEAVES)
        options = {**self.options, "attn_mask": x.get("attn_mask"), "enable_gqa": True}
        exact = attention(query, key, value, **options)
        found = {"output": exact.output, "lse": exact.lse}
        if self.grad:
            given = backward(query, key, value, x["grad_output"], grad_lse=x.get("grad_lse"), **options)
            found |= {f"grad_{name}": getattr(given, name) for name in LEAVES}
        return found

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "context-parallel.merge": True,
            "context-parallel.positions": bool(self.causal or self.mask),
            "context-parallel.order": self.deal != "contiguous",
            "context-parallel.backward": bool(self.grad),
            "mask.fully-masked-row": self.causal == "lower_right" and self.q > self.k,
            "grouped.head-map": self.hkv not in (0, self.hq),
            "attention.value-dim": bool(self.dv),
            "attention.scale-explicit": bool(self.scale),
            "flash.merge-gap": bool(self.shift or self.scores != 1.0),
            "accuracy.output-within-budget": True,
            "accuracy.lse-within-budget": True,
            "accuracy.gradients-within-budget": bool(self.grad),
        }
        return tuple(rule for rule, decides in table.items() if decides)
