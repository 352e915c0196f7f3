"""Form `latent`: queries, a compressed cache and the matrices that expand it, and attention over it, forward and
backward (chapter "latent")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, gradient_shapes, numbers
from attnspec.golden.inputs import Source, draw_lengths, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.latent import latent_attention, latent_backward
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError

CAUSAL = ("none", "upper_left", "lower_right")
LENGTHS = ("none", "ragged", "zero", "full")
CACHE = ("latent", "key_rope")
LEAVES = ("query", *CACHE, "w_uk", "w_uv")
GARBAGE = 64.0  # times the usual size: what the cache holds beyond a length

GROUPS: dict[str, dict[str, str]] = {
    "Queries over a cache of one compressed vector and one rotated key a token, for several heads.": {
        "latent-plain-float32": "b=2/h=3/q=5/k=7/nope=6/rope=2/rank=8/dv=5/seed=900",
        "latent-plain-float64": "h=2/q=5/k=7/nope=6/rope=2/rank=8/dv=5/dtype=float64/seed=901",
        "latent-plain-bfloat16": "b=2/h=4/q=5/k=9/nope=8/rope=4/rank=16/dv=8/dtype=bfloat16/seed=902",
        "latent-plain-float16": "h=4/q=5/k=9/nope=8/rope=4/rank=16/dv=8/dtype=float16/seed=903",
        "latent-one-head-float32": "q=5/k=7/nope=6/rope=2/rank=8/dv=6/seed=904",
    },
    "The rotated part as large as the rest or larger, and a rank below and far above the dimensions of a head.": {
        "latent-wide-rope-float32": "h=2/q=5/k=7/nope=2/rope=8/rank=6/dv=4/seed=910",
        "latent-high-rank-float32": "h=2/q=5/k=9/nope=4/rope=2/rank=32/dv=4/seed=911",
        "latent-high-rank-bfloat16": "h=2/q=5/k=9/nope=4/rope=4/rank=48/dv=4/dtype=bfloat16/seed=912",
        "latent-rank-1-float32": "h=2/q=5/k=7/nope=4/rope=2/rank=1/dv=3/seed=913",
        "latent-square-float32": "h=4/q=4/k=4/nope=4/rope=4/rank=4/dv=4/seed=914",
    },
    "Scores many times larger than usual, and a scale of the caller's.": {
        "latent-large-scores-float32": "h=2/q=5/k=9/nope=6/rope=2/rank=8/dv=5/scores=6/seed=920",
        "latent-large-scores-float16": "h=2/q=5/k=9/nope=6/rope=2/rank=8/dv=5/scores=3/dtype=float16/seed=921",
        "latent-scale-float32": "h=2/q=5/k=7/nope=6/rope=2/rank=8/dv=5/scale=0.25/seed=922",
        "latent-scale-bfloat16": "h=2/q=5/k=7/nope=6/rope=3/rank=8/dv=5/scale=0.7/dtype=bfloat16/seed=923",
    },
    "Training: the causal triangle over as many queries as keys.": {
        "latent-causal-float32": "b=2/h=2/q=7/k=7/nope=6/rope=2/rank=8/dv=5/causal=upper_left/seed=930",
        "latent-causal-bfloat16": "h=3/q=7/k=7/nope=6/rope=2/rank=8/dv=5/causal=upper_left/dtype=bfloat16/seed=931",
    },
    "Decoding: one query or the last few, with lengths of the batch elements; what the cache holds beyond is large.": {
        "latent-decode-float32": "b=3/h=4/q=1/k=17/nope=8/rope=4/rank=12/dv=6/lengths=ragged/seed=940",
        "latent-decode-bfloat16": "b=3/h=4/q=1/k=17/nope=8/rope=4/rank=12/dv=6/lengths=ragged/dtype=bfloat16/seed=941",
        "latent-decode-full-float16": "b=2/h=2/q=1/k=9/nope=8/rope=4/rank=12/dv=6/lengths=full/dtype=float16/seed=942",
        "latent-decode-last-few-float32": (
            "b=3/h=2/q=3/k=11/nope=6/rope=2/rank=8/dv=5/causal=lower_right/lengths=ragged/seed=943"
        ),
        "latent-empty-cache-float32": "b=3/h=2/q=2/k=9/nope=6/rope=2/rank=8/dv=5/lengths=zero/seed=944",
        "latent-empty-cache-bfloat16": "b=2/h=2/q=1/k=9/nope=6/rope=2/rank=8/dv=5/lengths=zero/dtype=bfloat16/seed=945",
    },
    "Gradients: those of the cache are summed over the heads, those of the matrices over the batch.": {
        "latent-gradients-float32": "b=2/h=3/q=5/k=7/nope=6/rope=2/rank=8/dv=5/grad=output/seed=950",
        "latent-gradients-float64": "b=2/h=2/q=3/k=5/nope=4/rope=2/rank=6/dv=3/grad=output/dtype=float64/seed=951",
        "latent-gradients-one-head-bfloat16": "q=5/k=7/nope=6/rope=2/rank=8/dv=6/grad=output/dtype=bfloat16/seed=952",
        "latent-gradients-causal-bfloat16": (
            "b=2/h=2/q=6/k=6/nope=6/rope=2/rank=8/dv=5/causal=upper_left/grad=output/dtype=bfloat16/seed=953"
        ),
        "latent-gradients-causal-float16": (
            "h=3/q=6/k=6/nope=6/rope=2/rank=8/dv=5/causal=upper_left/grad=output/dtype=float16/seed=954"
        ),
        "latent-gradients-lse-float32": "b=2/h=2/q=4/k=6/nope=6/rope=2/rank=8/dv=5/grad=lse/seed=955",
        "latent-gradients-lse-float16": "h=2/q=4/k=6/nope=6/rope=2/rank=8/dv=5/grad=lse/dtype=float16/seed=956",
        "latent-gradients-scale-high-rank-float32": (
            "h=2/q=4/k=6/nope=4/rope=2/rank=16/dv=4/scale=0.25/grad=output/seed=957"
        ),
        "latent-gradients-low-rank-float32": "b=2/h=2/q=4/k=6/nope=6/rope=4/rank=3/dv=5/grad=output/seed=958",
    },
    "Gradients of decoding: a token that does not exist has none, and adds nothing to those of the matrices.": {
        "latent-gradients-decode-float32": (
            "b=3/h=4/q=1/k=9/nope=6/rope=4/rank=12/dv=5/lengths=ragged/grad=output/seed=960"
        ),
        "latent-gradients-decode-bfloat16": (
            "b=3/h=2/q=3/k=9/nope=6/rope=2/rank=8/dv=5/causal=lower_right/lengths=ragged/grad=output/dtype=bfloat16"
            "/seed=961"
        ),
        "latent-gradients-empty-cache-float32": (
            "b=3/h=2/q=2/k=7/nope=6/rope=2/rank=8/dv=5/lengths=zero/grad=output/seed=962"
        ),
    },
    "Gradients over several tiles of keys and rows, below the diagonal of more rows than keys, and of large scores.": {
        "latent-gradients-tiles-float32": "q=18/k=35/nope=2/rope=2/rank=3/dv=2/grad=output/seed=970",
        "latent-gradients-causal-lse-float32": (
            "b=2/h=2/q=6/k=6/nope=4/rope=2/rank=6/dv=3/causal=upper_left/grad=lse/seed=971"
        ),
        "latent-gradients-empty-rows-lse-float32": (
            "b=3/h=2/q=7/k=5/nope=4/rope=2/rank=6/dv=3/causal=lower_right/lengths=ragged/grad=lse/seed=972"
        ),
        "latent-gradients-large-scores-float32": (
            "h=2/q=4/k=9/nope=4/rope=2/rank=6/dv=3/scores=6/scale=-0.5/grad=output/seed=973"
        ),
    },
}


@dataclass(frozen=True)
class LatentProblem(WordProblem):
    """Latent attention. b, h, q, k: batch, heads, q_len, k_len; nope, rope, rank, dv: nope_dim, rope_dim, kv_rank,
    value_dim. causal: `none`, or the corner of the triangle. lengths: of the cache, `ragged` (1 to k_len, all in the
    last element), `zero` (the same, and none in the first) or `full`; beyond them the cache holds large numbers.
    scale: 0 is the default. scores: factor on the query. grad: `output`, or `lse` for both."""

    form: ClassVar[str] = "latent"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", *(f"grad_{name}" for name in LEAVES))

    b: int = 1
    h: int = 1
    q: int = 1
    k: int = 1
    nope: int = 4
    rope: int = 2
    rank: int = 8
    dv: int = 4
    causal: str = "none"
    lengths: str = "none"
    scale: float = 0.0
    scores: float = 1.0
    grad: str = ""

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.causal not in CAUSAL or self.lengths not in LENGTHS:
            raise InputError(f"causal is {self.causal!r}, lengths {self.lengths!r}: use {CAUSAL} and {LENGTHS}")
        if self.grad not in ("", "output", "lse"):
            raise InputError(f"grad is {self.grad!r}: use output or lse")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        rows = (self.b, self.h, self.q)
        shapes: Shapes = {
            "query": (self.dtype, (*rows, self.nope + self.rope)),
            "latent": (self.dtype, (self.b, self.k, self.rank)),
            "key_rope": (self.dtype, (self.b, self.k, self.rope)),
            "w_uk": (self.dtype, (self.h, self.nope, self.rank)),
            "w_uv": (self.dtype, (self.h, self.dv, self.rank)),
            "output": ("float64", (*rows, self.dv)),
            "lse": ("float64", rows),
        }
        if self.lengths != "none":
            shapes["key_lengths"] = ("int32", (self.b,))
        return shapes | gradient_shapes(shapes, self.dtype, LEAVES, self.grad)

    def inputs(self) -> Tensors:
        """Return query, the cache latent and key_rope, the matrices w_uk and w_uv, key_lengths, and what flows
        back."""
        draw, shapes = Source(self.seed), self.shapes()
        factor = {"query": self.scores, "w_uk": self.rank**-0.5, "w_uv": self.rank**-0.5}
        names = [name for name in (*LEAVES, "grad_output", "grad_lse") if name in shapes]
        drawn = {name: draw.normal(name, shapes[name][1]) * factor.get(name, 1.0) for name in names}
        lengths = None
        if self.lengths != "none":
            lengths = draw_lengths(draw, self.lengths, self.b, self.k)
            absent = np.arange(self.k)[:, None] >= lengths[:, None, None]  # (batch, k_len, 1)
            drawn |= {name: np.where(absent, drawn[name] * GARBAGE, drawn[name]) for name in CACHE}
        tensors = {name: to_tensor(x, format_named(shapes[name][0])) for name, x in drawn.items()}
        return tensors if lengths is None else tensors | {"key_lengths": torch.from_numpy(lengths)}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return output and lse, and the gradients where something flows back."""
        x = {name: numbers(tensor) for name, tensor in inputs.items()}
        tensors = [x[name] for name in LEAVES]
        options: dict[str, Any] = {"scale": self.scale or None, "key_lengths": x.get("key_lengths")}
        if self.causal != "none":
            options |= {"is_causal": True, "causal_alignment": self.causal}
        found = latent_attention(*tensors, **options)
        results = {"output": found.output, "lse": found.lse}
        if self.grad:
            options |= {name: x.get(name) for name in ("grad_output", "grad_lse")}
            given = latent_backward(*tensors, **options)
            results |= {f"grad_{name}": getattr(given, name) for name in LEAVES}
        return results

    @property
    def _more_rows_than_keys(self) -> bool:
        """Whether the lower right corner leaves the first rows without a key."""
        return self.causal == "lower_right" and self.q > self.k

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "latent.expanded": True,
            "latent.absorbed": True,
            "latent.scale": not self.scale,
            "latent.shared-rope": self.h > 1,
            "attention.scale-explicit": bool(self.scale),
            "mask.causal-upper-left": self.causal == "upper_left",
            "key-lengths.causal": self.causal == "lower_right" and self.lengths != "none",
            "key-lengths.visible": self.lengths in ("ragged", "zero"),
            "key-lengths.absent": self.lengths in ("ragged", "zero"),
            "key-lengths.zero": self.lengths == "zero",
            "mask.fully-masked-row": self.lengths == "zero" or self._more_rows_than_keys,
            "softmax.lse": True,
            "latent.gradient": bool(self.grad),
            "accuracy.latent-within-budget": True,
        }
        return tuple(rule for rule, decides in table.items() if decides)
