"""Form `additive`: attention whose scores come from a small network, its output, lse and weights (chapter "additive
attention")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem, numbers
from attnspec.golden.inputs import HIDDEN_SHARE, Source, to_tensor
from attnspec.golden.shapes import Shapes
from attnspec.reference.exact.additive import additive_attention
from attnspec.spec.dtypes import format_named
from attnspec.spec.errors import InputError

MASKS = ("none", "padding", "rows", "empty", "bias", "bias_empty", "bias_low")
BIASES = {"bias": 0.0, "bias_empty": -np.inf, "bias_low": -30000.0}  # what stands where `empty` hides
BIAS = 2.0  # standard deviation of what a mask adds, some times that of the scores
NETWORK = ("query", "key", "w_q", "w_k", "v_a")

GROUPS: dict[str, dict[str, str]] = {
    "Scores v_a^T tanh(W_q q + W_k k) of queries and keys of one dimension.": {
        "additive-plain-float32": "b=2/h=2/q=5/k=7/query_dim=8/key_dim=8/hidden=8/seed=800",
        "additive-plain-float64": "q=5/k=7/query_dim=8/key_dim=8/hidden=8/dtype=float64/seed=801",
        "additive-plain-bfloat16": "h=2/q=5/k=9/query_dim=8/key_dim=8/hidden=12/dtype=bfloat16/seed=802",
        "additive-plain-float16": "h=2/q=5/k=9/query_dim=8/key_dim=8/hidden=12/dtype=float16/seed=803",
        "additive-one-key-float32": "b=2/q=3/k=1/query_dim=8/key_dim=8/hidden=8/seed=804",
        "additive-one-query-float32": "b=2/q=1/k=17/query_dim=8/key_dim=8/hidden=8/seed=805",
    },
    "Queries, keys, values and the hidden layer of dimensions of their own.": {
        "additive-dims-float32": "q=5/k=7/query_dim=6/key_dim=10/value_dim=3/hidden=5/seed=810",
        "additive-dims-bfloat16": "q=5/k=7/query_dim=3/key_dim=12/value_dim=9/hidden=16/dtype=bfloat16/seed=811",
        "additive-hidden-1-float32": "q=5/k=7/query_dim=8/key_dim=4/hidden=1/seed=812",
    },
    "Arguments of tanh far beyond 1, where it saturates, and scores that are many times larger than usual.": {
        "additive-saturated-float32": "q=5/k=7/query_dim=8/key_dim=8/hidden=8/arguments=8/seed=820",
        "additive-saturated-float16": "q=5/k=7/query_dim=8/key_dim=8/hidden=8/arguments=8/dtype=float16/seed=821",
        "additive-large-scores-float32": "q=5/k=9/query_dim=8/key_dim=8/hidden=8/scores=8/seed=822",
        "additive-large-scores-bfloat16": "q=5/k=9/query_dim=8/key_dim=8/hidden=8/scores=4/dtype=bfloat16/seed=823",
        "additive-small-arguments-float32": "q=5/k=7/query_dim=8/key_dim=8/hidden=8/arguments=0.0625/seed=824",
    },
    "Masks: padding, rows, the causal triangle, and a row that sees no key.": {
        "additive-padding-float32": "b=3/q=3/k=9/query_dim=8/key_dim=8/hidden=8/mask=padding/seed=830",
        "additive-padding-bfloat16": "b=3/q=3/k=9/query_dim=8/key_dim=8/hidden=8/mask=padding/dtype=bfloat16/seed=831",
        "additive-rows-float32": "h=2/q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=rows/seed=832",
        "additive-causal-float32": "q=7/k=7/query_dim=8/key_dim=8/hidden=8/causal/seed=833",
        "additive-causal-padding-float64": (
            "b=2/q=5/k=5/query_dim=4/key_dim=4/hidden=4/mask=padding/causal/dtype=float64/seed=834"
        ),
        "additive-empty-row-float32": "h=2/q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=empty/seed=835",
        "additive-empty-row-float16": "q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=empty/dtype=float16/seed=836",
    },
    "Masks of the dtype of the queries, added to the scores; -inf hides a slot.": {
        "additive-bias-float32": "b=2/h=2/q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=bias/seed=840",
        "additive-bias-bfloat16": "h=2/q=5/k=9/query_dim=8/key_dim=8/hidden=8/mask=bias/dtype=bfloat16/seed=841",
        "additive-bias-causal-float64": (
            "q=5/k=5/query_dim=4/key_dim=4/hidden=4/mask=bias/causal/dtype=float64/seed=842"
        ),
        "additive-bias-empty-row-float32": "b=2/q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=bias_empty/seed=843",
        "additive-bias-empty-row-float16": (
            "q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=bias_empty/dtype=float16/seed=844"
        ),
        "additive-bias-low-float32": "b=2/q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=bias_low/seed=845",
        "additive-bias-low-float64": "q=5/k=7/query_dim=8/key_dim=8/hidden=8/mask=bias_low/dtype=float64/seed=846",
    },
}


@dataclass(frozen=True)
class AdditiveProblem(WordProblem):
    """Additive attention. b, h, q, k: batch, heads, q_len, k_len. value_dim: 0 is key_dim. arguments: factor on the
    arguments of tanh; scores: factor on v_a. mask, bool: `padding` (batch, 1, 1, k_len); `rows` (random) and `empty`
    (random, and the first row sees nothing), (batch, 1, q_len, k_len). mask, floating, (batch, heads, q_len, k_len):
    `bias`, normal numbers times 2; `bias_empty`, `bias_low`, the same with -inf, or -30000, where `empty` hides.
    causal: row i sees no key j > i."""

    form: ClassVar[str] = "additive"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", "weights")

    b: int = 1
    h: int = 1
    q: int = 1
    k: int = 1
    query_dim: int = 8
    key_dim: int = 8
    value_dim: int = 0
    hidden: int = 8
    mask: str = "none"
    causal: bool = False
    arguments: float = 1.0
    scores: float = 1.0

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.mask not in MASKS:
            raise InputError(f"mask is {self.mask!r}: use one of {', '.join(MASKS)}")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        rows, keys = (self.b, self.h, self.q), (self.b, self.h, self.k)
        value_dim = self.value_dim or self.key_dim
        shapes: Shapes = {
            "query": (self.dtype, (*rows, self.query_dim)),
            "key": (self.dtype, (*keys, self.key_dim)),
            "value": (self.dtype, (*keys, value_dim)),
            "w_q": (self.dtype, (self.hidden, self.query_dim)),
            "w_k": (self.dtype, (self.hidden, self.key_dim)),
            "v_a": (self.dtype, (self.hidden,)),
            "output": ("float64", (*rows, value_dim)),
            "lse": ("float64", rows),
            "weights": ("float64", (*rows, self.k)),
        }
        if self.mask != "none":
            heads = self.h if self.mask in BIASES else 1
            rows_of = 1 if self.mask == "padding" else self.q
            dtype = self.dtype if self.mask in BIASES else "bool"
            shapes["attn_mask"] = (dtype, (self.b, heads, rows_of, self.k))
        return shapes

    def inputs(self) -> Tensors:
        """Return query, key, value, the parameters w_q, w_k and v_a, and the mask."""
        draw, shapes, fmt = Source(self.seed), self.shapes(), format_named(self.dtype)
        size = {"w_q": self.arguments / np.sqrt(self.query_dim), "w_k": self.arguments / np.sqrt(self.key_dim)}
        size |= {"v_a": self.scores}
        tensors = {
            name: to_tensor(draw.normal(name, shapes[name][1]) * size.get(name, 1.0), fmt)
            for name in (*NETWORK, "value")
        }
        if self.mask != "none":
            mask = self._bias if self.mask in BIASES else self._mask
            tensors["attn_mask"] = mask(draw, shapes["attn_mask"][1])
        return tensors

    def _mask(self, draw: Source, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the mask, True where a slot takes part."""
        if self.mask == "padding":
            lengths = 1 + (draw.uniform("lengths", (shape[0], 1, 1, 1)) * shape[3]).astype(np.int64)
            return torch.from_numpy(np.arange(shape[3]) < lengths)
        keep = ~draw.chance("hidden", shape, HIDDEN_SHARE)
        if self.mask == "rows":
            keep[..., :1] = True  # every row sees a key
        else:
            keep[:, :, :1] = False
        return torch.from_numpy(keep)

    def _bias(self, draw: Source, shape: tuple[int, ...]) -> torch.Tensor:
        """Return the mask that is added to the scores."""
        bias = to_tensor(draw.normal("bias", shape) * BIAS, format_named(self.dtype))
        return bias if self.mask == "bias" else bias.masked_fill(~self._mask(draw, shape), BIASES[self.mask])

    def truth(self, inputs: Tensors) -> Arrays:
        """Return output, lse and weights; the weights are the output for values of which each is one key's unit
        vector."""
        given = {name: numbers(tensor) for name, tensor in inputs.items()}
        options: dict[str, Any] = {"attn_mask": given.get("attn_mask"), "is_causal": self.causal}
        query, key, *parameters = (given[name] for name in NETWORK)
        found = additive_attention(query, key, given["value"], *parameters, **options)
        units = np.broadcast_to(np.eye(self.k), (self.b, self.h, self.k, self.k))
        weights = additive_attention(query, key, units, *parameters, **options).output
        return {"output": found.output, "lse": found.lse, "weights": weights}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        masked = self.mask != "none" or self.causal
        table = {"additive.mask": masked, "additive.score": self.k > 1, "additive.softmax": True}
        table |= {"mask.finite-bias": self.mask == "bias_low", "accuracy.additive-within-budget": True}
        return tuple(rule for rule, decides in table.items() if decides)
