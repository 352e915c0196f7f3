"""Form `multi_head`: tokens, projections and a mask, and what the module around the kernel makes of them (chapter
"multi-head")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, numbers
from attnspec.golden.inputs import HIDDEN_SHARE, Source, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.multi_head import Projections, multi_head
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError

MASKS = ("none", "padding", "rows", "causal", "empty", "heads")
MASK_DTYPES = ("bool", "int32", "float32")
LAYERS = ("q", "k", "v", "o")

GROUPS: dict[str, dict[str, str]] = {
    "Self-attention: one sequence of tokens, in several heads.": {
        "multi-head-self-float32": "b=2/q=5/k=5/d_model=16/heads=4/same/seed=700",
        "multi-head-self-float64": "q=5/k=5/d_model=12/heads=3/same/dtype=float64/seed=701",
        "multi-head-self-bfloat16": "b=2/q=7/k=7/d_model=24/heads=4/same/dtype=bfloat16/seed=702",
        "multi-head-self-float16": "q=9/k=9/d_model=24/heads=3/same/dtype=float16/seed=703",
        "multi-head-self-no-bias-float32": "b=2/q=5/k=5/d_model=16/heads=2/same/no_bias/seed=704",
        "multi-head-one-head-float32": "q=5/k=5/d_model=8/heads=1/same/seed=705",
        "multi-head-as-many-heads-as-d-model-float32": "q=5/k=5/d_model=4/heads=4/same/seed=706",
    },
    "Cross-attention: queries of one sequence, keys and values of another length.": {
        "multi-head-cross-float32": "b=2/q=5/k=9/d_model=16/heads=4/seed=710",
        "multi-head-cross-one-query-bfloat16": "b=2/q=1/k=17/d_model=16/heads=4/dtype=bfloat16/seed=711",
        "multi-head-cross-no-bias-float16": "q=9/k=5/d_model=16/heads=2/no_bias/dtype=float16/seed=712",
        "multi-head-cross-dims-float32": "b=2/q=5/k=7/d_model=16/kdim=12/vdim=20/heads=4/seed=713",
    },
    "Heads of d_k and d_v other than d_model / heads.": {
        "multi-head-d-v-larger-float32": "q=5/k=7/d_model=12/heads=3/d_v=7/seed=720",
        "multi-head-d-v-smaller-float32": "q=5/k=7/d_model=12/heads=2/d_v=1/no_bias/seed=721",
        "multi-head-d-k-larger-float64": "q=5/k=7/d_model=8/heads=3/d_k=5/d_v=2/dtype=float64/seed=722",
        "multi-head-d-k-smaller-bfloat16": "q=5/k=7/d_model=24/heads=2/d_k=4/d_v=8/dtype=bfloat16/seed=723",
    },
    "Masks with 0 = masked, (batch, 1, 1, k_len) for padding and (batch, 1, q_len, k_len) for rows.": {
        "multi-head-padding-float32": "b=3/q=5/k=9/d_model=16/heads=4/mask=padding/mask_dtype=int32/seed=730",
        "multi-head-padding-self-bfloat16": "b=3/q=9/k=9/d_model=16/heads=2/same/mask=padding/dtype=bfloat16/seed=731",
        "multi-head-causal-float32": "b=2/q=7/k=7/d_model=16/heads=4/same/mask=causal/mask_dtype=float32/seed=732",
        "multi-head-causal-float16": "q=9/k=9/d_model=16/heads=2/same/mask=causal/dtype=float16/seed=733",
        "multi-head-rows-float32": "b=2/q=5/k=9/d_model=16/heads=2/mask=rows/seed=734",
        "multi-head-mask-of-heads-float32": "b=2/q=5/k=9/d_model=16/heads=4/mask=heads/mask_dtype=int32/seed=735",
    },
    "A row that no head can see through is the bias of the output projection, or 0 without one.": {
        "multi-head-empty-row-float32": "b=2/q=5/k=7/d_model=16/heads=4/mask=empty/seed=740",
        "multi-head-empty-row-int-float64": (
            "q=5/k=7/d_model=8/heads=2/mask=empty/mask_dtype=int32/dtype=float64/seed=741"
        ),
        "multi-head-empty-row-no-bias-float32": "q=5/k=7/d_model=16/heads=2/no_bias/mask=empty/seed=742",
        "multi-head-empty-row-bfloat16": (
            "q=5/k=7/d_model=16/heads=2/mask=empty/mask_dtype=float32/dtype=bfloat16/seed=743"
        ),
    },
    "Grouped queries: fewer heads of keys and values than of queries, and one alone (multi-query).": {
        "multi-head-grouped-float32": "b=2/q=5/k=9/d_model=24/heads=6/kv_heads=2/mask=rows/seed=760",
        "multi-head-grouped-causal-bfloat16": (
            "q=7/k=7/d_model=24/heads=6/kv_heads=3/same/mask=causal/mask_dtype=float32/dtype=bfloat16/seed=761"
        ),
        "multi-head-grouped-dims-float64": (
            "q=5/k=7/d_model=12/heads=4/kv_heads=2/d_k=5/d_v=2/kdim=8/vdim=9/dtype=float64/seed=762"
        ),
        "multi-head-grouped-mask-of-heads-float32": (
            "b=2/q=5/k=7/d_model=16/heads=4/kv_heads=2/mask=heads/mask_dtype=int32/seed=763"
        ),
        "multi-head-multi-query-float32": "b=3/q=5/k=9/d_model=16/heads=4/kv_heads=1/mask=padding/seed=764",
        "multi-head-multi-query-float16": "q=7/k=9/d_model=16/heads=4/kv_heads=1/no_bias/dtype=float16/seed=765",
    },
    "Sharp weights: scores several times larger than usual.": {
        "multi-head-large-scores-float32": "q=9/k=9/d_model=16/heads=2/same/scores=6/seed=750",
        "multi-head-large-scores-bfloat16": "q=9/k=9/d_model=16/heads=2/scores=3/dtype=bfloat16/seed=751",
    },
}


@dataclass(frozen=True)
class MultiHeadProblem(WordProblem):
    """A multi-head module and its tokens. b, q, k: batch, q_len, k_len. kv_heads: heads of keys and values, 0 is
    heads. kdim, vdim: 0 is d_model; d_k, d_v: 0 is d_model / heads. no_bias: no projection adds one. same: query, key
    and value are the same tokens. mask: `padding`
    (batch, 1, 1, k_len); `rows` (random), `causal` and `empty` (random, and the first row sees nothing), (batch, 1,
    q_len, k_len); `heads` (batch, heads, q_len, k_len), in which the first row of the first head sees nothing.
    mask_dtype: bool, int32 or float32. scores: factor on the projection of the queries."""

    form: ClassVar[str] = "multi_head"
    truths: ClassVar[tuple[str, ...]] = ("output",)

    b: int = 1
    q: int = 1
    k: int = 1
    d_model: int = 8
    heads: int = 1
    kv_heads: int = 0
    d_k: int = 0
    d_v: int = 0
    kdim: int = 0
    vdim: int = 0
    no_bias: bool = False
    same: bool = False
    mask: str = "none"
    mask_dtype: str = "bool"
    scores: float = 1.0

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.mask not in MASKS or self.mask_dtype not in MASK_DTYPES:
            raise InputError(f"mask is {self.mask!r} of {self.mask_dtype!r}: use {MASKS} of {MASK_DTYPES}")
        if self.heads < 1 or (self.d_model % self.heads and 0 in (self.d_k, self.d_v)):
            raise InputError(f"d_model {self.d_model} is no multiple of heads {self.heads}: use one, or give d_k, d_v")
        if self.heads % self.groups:
            raise InputError(f"heads {self.heads} is no multiple of kv_heads {self.kv_heads}: use one")
        if self.same and (self.q != self.k or self.kdim or self.vdim):
            raise InputError("the same tokens have one length and one dimension: leave out kdim and vdim, use q = k")

    @property
    def dims(self) -> tuple[int, int]:
        """(d_k, d_v), elements of a head's queries and values."""
        usual = self.d_model // self.heads
        return self.d_k or usual, self.d_v or usual

    @property
    def groups(self) -> int:
        """The number of groups of query heads, each of which shares one head of keys and values."""
        return self.kv_heads or self.heads

    @property
    def widths(self) -> dict[str, tuple[int, int]]:
        """The shape (out, in) of each projection's weight."""
        (d_k, d_v), h, groups = self.dims, self.heads, self.groups
        return {
            "q": (h * d_k, self.d_model),
            "k": (groups * d_k, self.kdim or self.d_model),
            "v": (groups * d_v, self.vdim or self.d_model),
            "o": (self.d_model, h * d_v),
        }

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        widths = self.widths
        shapes: Shapes = {
            "query": (self.dtype, (self.b, self.q, self.d_model)),
            "key": (self.dtype, (self.b, self.k, widths["k"][1])),
            "value": (self.dtype, (self.b, self.k, widths["v"][1])),
            "output": ("float64", (self.b, self.q, self.d_model)),
        }
        for layer in LAYERS:
            shapes[f"w_{layer}"] = (self.dtype, widths[layer])
            if not self.no_bias:
                shapes[f"b_{layer}"] = (self.dtype, widths[layer][:1])
        if self.mask != "none":
            heads = self.heads if self.mask == "heads" else 1
            shapes["mask"] = (self.mask_dtype, (self.b, heads, 1 if self.mask == "padding" else self.q, self.k))
        return shapes

    def inputs(self) -> Tensors:
        """Return tokens, weights of standard deviation 1 / sqrt(in), biases, and the mask."""
        draw, shapes, fmt = Source(self.seed), self.shapes(), format_named(self.dtype)
        tensors = {}
        for name, (_, shape) in shapes.items():
            if name in ("output", "mask"):
                continue
            drawn = draw.normal("query" if self.same and name in ("key", "value") else name, shape)
            if name.startswith("w_"):
                drawn = drawn / np.sqrt(shape[1])
            if name in ("w_q", "b_q"):
                drawn = drawn * self.scores
            tensors[name] = to_tensor(drawn, fmt)
        if self.mask != "none":
            tensors["mask"] = self._mask(draw, shapes["mask"][1])
        return tensors

    def _mask(self, draw: Source, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the mask, 0 where a slot is masked."""
        batch, _, q_len, k_len = shape
        if self.mask == "padding":
            lengths = 1 + (draw.uniform("lengths", (batch, 1, 1, 1)) * k_len).astype(np.int64)
            keep = np.arange(k_len) < lengths
        elif self.mask == "causal":
            keep = np.broadcast_to(np.tri(q_len, k_len, dtype=np.bool_), shape)
        else:
            keep = ~draw.chance("hidden", shape, HIDDEN_SHARE)
            if self.mask == "rows":
                keep[..., :1] = True  # every row sees a key
            else:
                keep[:, :1, :1] = False
        return torch.from_numpy(np.array(keep)).to(getattr(torch, self.mask_dtype))

    def truth(self, inputs: Tensors) -> Arrays:
        """Return MultiHead(Q, K, V), (batch, q_len, d_model)."""
        given = {name: numbers(tensor) for name, tensor in inputs.items()}
        layers = {name: given[name] for name in given if name.startswith(("w_", "b_"))}
        tokens = (given["query"], given["key"], given["value"])
        output = multi_head(
            *tokens,
            Projections(**layers),
            num_heads=self.heads,
            num_kv_heads=self.groups,
            mask=given.get("mask"),
        )
        return {"output": output}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "multi-head.empty-row": self.mask in ("empty", "heads"),
            "multi-head.mask-convention": self.mask != "none",
            "multi-head.cross-lengths": self.q != self.k,
            "multi-head.split": self.heads > 1,
            "multi-head.concat-order": self.heads > 1,
            "grouped.head-map": 1 < self.groups < self.heads,
            "grouped.multi-query": self.groups == 1 < self.heads,
            "multi-head.projections": True,
            "multi-head.output-projection": True,
            "attention.scale-default": True,
            "accuracy.multi-head-within-budget": True,
        }
        return tuple(rule for rule, decides in table.items() if decides)
