"""Form `dropout`: an attention call with a stored mask of kept weights, its output, lse and gradients (chapter
"dropout")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from attnspec.golden.forms.form import Arrays, FormProblem, Tensors, numbers
from attnspec.golden.inputs import Source, make_call
from attnspec.golden.shapes import Shapes, shapes_of
from attnspec.reference.exact.backward import backward
from attnspec.reference.exact.dropout import dropped_attention
from attnspec.spec.call import Gradients
from attnspec.spec.errors import InputError
from attnspec.spec.exercised import rules_exercised
from attnspec.spec.problem import Problem

GIVEN = ("query", "key", "value", "attn_mask", "grad_output", "grad_lse")

GROUPS: dict[str, dict[str, str]] = {
    "Weights dropped with a given mask, the kept ones divided by 1 - p.": {
        "dropout-half-float32": "b=2/hq=2/q=5/k=9/d=8/dropout=0.5/seed=500",
        "dropout-tenth-float32": "hq=2/q=9/k=33/d=24/dropout=0.1/seed=501",
        "dropout-third-bfloat16": "hq=2/q=9/k=17/d=24/dtype=bfloat16/dropout=0.3/seed=502",
        "dropout-third-float16": "hq=2/q=9/k=17/d=24/dtype=float16/dropout=0.3/seed=503",
        "dropout-third-float64": "q=5/k=9/d=8/dtype=float64/dropout=0.3/seed=504",
        "dropout-most-float32": "hq=2/q=9/k=17/d=8/dropout=0.9/seed=505",
        "dropout-large-scores-float32": "q=9/k=17/d=8/dropout=0.3/scores=8/seed=506",
        "dropout-value-dim-float32": "q=5/k=9/d=8/dv=24/dropout=0.3/seed=507",
    },
    "Every weight dropped: output and gradients are 0, the lse is that of the scores.": {
        "dropout-all-float32": "hq=2/q=5/k=9/d=8/dropout=1/seed=510",
        "dropout-all-bfloat16": "q=5/k=9/d=8/dtype=bfloat16/dropout=1/seed=511",
        "dropout-all-gradients-float32": "q=5/k=9/d=8/dropout=1/grad/seed=512",
    },
    "Dropout with masks, the causal triangle and groups; a row that sees no key; one key, which may be dropped.": {
        "dropout-causal-float32": "hq=2/q=9/k=9/d=8/dropout=0.3/causal/seed=520",
        "dropout-padding-bfloat16": "b=3/q=5/k=17/d=8/dtype=bfloat16/mask=bool.b11k.padding/dropout=0.3/seed=521",
        "dropout-empty-rows-float32": "hq=2/q=9/k=9/d=8/mask=bool.hqk.empty_rows/dropout=0.3/seed=522",
        "dropout-bias-float32": "hq=2/q=5/k=9/d=8/mask=float.hqk.random/dropout=0.3/seed=523",
        "dropout-grouped-float32": "hq=4/hkv=2/q=5/k=9/d=8/dropout=0.3/seed=524",
        "dropout-one-key-float32": "hq=2/q=9/k=1/d=8/dropout=0.5/seed=525",
    },
    "Gradients pass through the mask and the factor of the forward pass.": {
        "dropout-gradients-float32": "hq=2/q=5/k=9/d=8/dropout=0.3/grad/seed=530",
        "dropout-gradients-bfloat16": "hq=2/q=9/k=9/d=8/dtype=bfloat16/dropout=0.3/grad/seed=531",
        "dropout-gradients-float64": "q=5/k=9/d=8/dtype=float64/dropout=0.1/grad/seed=532",
        "dropout-gradients-causal-grouped-float32": "hq=4/hkv=2/q=9/k=9/d=8/dropout=0.3/causal/grad/seed=533",
        "dropout-gradients-empty-rows-float32": "q=9/k=9/d=8/mask=bool.qk.empty_rows/dropout=0.5/grad/seed=534",
        "dropout-gradients-lse-float32": "q=5/k=9/d=8/dropout=0.3/grad=lse/seed=535",
    },
}


@dataclass(frozen=True)
class DropoutProblem(FormProblem):
    """An attention problem with dropout, whose mask is drawn with the inputs."""

    form: ClassVar[str] = "dropout"
    truths: ClassVar[tuple[str, ...]] = ("output", "lse", "grad_query", "grad_key", "grad_value")

    problem: Problem

    def __post_init__(self) -> None:
        """Raise InputError for a problem that the form does not hold."""
        p = self.problem
        if p.dropout is None or p.key_lengths is not None or p.kv_batch != p.batch:
            raise InputError(f"{p}: use dropout, without key lengths and with one batch")
        if p.grad and p.mask is not None and p.mask.kind == "float":
            raise InputError(f"{p}: has gradients and a bias; use a bool mask")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a problem's string. Raises InputError that names the word at fault."""
        return cls(Problem.parse(text))

    def __str__(self) -> str:
        return str(self.problem)

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        p = self.problem
        return shapes_of(p) | {"keep": ("bool", (p.batch, p.q_heads, p.q_len, p.k_len))}

    def inputs(self) -> Tensors:
        """Return the tensors of the call, and keep, bool (batch, q_heads, q_len, k_len), True where a weight stays."""
        p, call = self.problem, make_call(self.problem)
        tensors = {name: tensor for name in GIVEN if (tensor := getattr(call, name)) is not None}
        dropped = Source(p.seed).chance("keep", (p.batch, p.q_heads, p.q_len, p.k_len), self.dropout_p)
        return tensors | {"keep": torch.from_numpy(~dropped)}

    @property
    def dropout_p(self) -> float:
        """The probability that a weight is dropped."""
        assert self.problem.dropout is not None, "checked when it was made"
        return self.problem.dropout

    @property
    def options(self) -> dict[str, Any]:
        """The options of the call that are no tensors, without dropout."""
        p = self.problem
        corner = {"is_causal": p.causal is not None, "causal_alignment": p.causal or "upper_left"}
        return corner | {"scale": p.scale, "enable_gqa": p.q_heads != p.kv_heads}

    def truth(self, inputs: Tensors) -> Arrays:
        """Return the true output and lse, and the gradients where the problem asks for them."""
        arrays = {name: numbers(tensor) for name, tensor in inputs.items()}
        query, key, value = (arrays[name] for name in ("query", "key", "value"))
        options = self.options | {"attn_mask": arrays.get("attn_mask")}
        options |= {"dropout_p": self.dropout_p, "keep": arrays["keep"]}
        exact = dropped_attention(query, key, value, **options)
        found = {"output": exact.output, "lse": exact.lse}
        if "grad_output" not in arrays:
            return found
        given = backward(query, key, value, arrays["grad_output"], grad_lse=arrays.get("grad_lse"), **options)
        true = {f"grad_{name}": getattr(given, name) for name in Gradients._fields}
        return found | {name: array for name, array in true.items() if array is not None}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "dropout.one": self.dropout_p == 1,
            "dropout.backward-mask": self.problem.grad is not None,
            "backward.dropout": self.problem.grad is not None,
            "dropout.inverted": True,
            "dropout.on-weights": True,
            "dropout.lse": True,
            "accuracy.output-within-budget": True,
            "accuracy.lse-within-budget": True,
            "accuracy.gradients-within-budget": self.problem.grad is not None,
        }
        special = tuple(rule for rule, decides in table.items() if decides)
        return (*special, *rules_exercised(self.problem, return_lse=True))
