"""Form `document_mask`: the document of each token, and which key each query sees (chapter "document-masks")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from attnspec.golden.forms.form import Arrays, Tensors, WordProblem
from attnspec.golden.inputs import Source
from attnspec.golden.shapes import Shapes
from attnspec.spec.errors import InputError

LAYOUTS = ("packed", "falling", "mixed", "padded", "led", "paddings", "single", "alone", "padding")

GROUPS: dict[str, dict[str, str]] = {
    "Documents one behind the other in one sequence, with and without the triangle.": {
        "document-mask-packed": "b=2/q=12/k=12/seed=1100",
        "document-mask-packed-causal": "b=2/q=12/k=12/causal/seed=1101",
        "document-mask-one-document": "q=7/k=7/layout=single/seed=1102",
        "document-mask-one-document-causal": "q=7/k=7/layout=single/causal/seed=1103",
        "document-mask-tokens-alone": "q=7/k=7/layout=alone/seed=1104",
    },
    "Numbers that fall or have gaps, and documents whose tokens are no neighbours.": {
        "document-mask-falling": "b=2/q=12/k=12/layout=falling/seed=1110",
        "document-mask-falling-causal": "b=2/q=12/k=12/layout=falling/causal/seed=1111",
        "document-mask-mixed": "b=2/q=12/k=12/layout=mixed/seed=1112",
        "document-mask-mixed-causal": "b=2/q=12/k=12/layout=mixed/causal/seed=1113",
    },
    "Padding, a number below 0, behind the documents and before them, of one number and of several, and alone.": {
        "document-mask-padded": "b=2/q=12/k=12/layout=padded/seed=1120",
        "document-mask-padded-causal": "b=2/q=12/k=12/layout=padded/causal/seed=1121",
        "document-mask-padding-first": "b=2/q=9/k=9/layout=led/seed=1122",
        "document-mask-padding-first-causal": "b=2/q=9/k=9/layout=led/causal/seed=1123",
        "document-mask-paddings": "b=2/q=12/k=12/layout=paddings/seed=1124",
        "document-mask-nothing-but-padding": "q=5/k=5/layout=padding/seed=1125",
    },
    "Queries and keys of different lengths, each with the documents of its own tokens.": {
        "document-mask-wide": "b=2/q=5/k=12/layout=mixed/seed=1130",
        "document-mask-tall": "b=2/q=12/k=5/layout=mixed/seed=1131",
        "document-mask-wide-paddings": "b=2/q=5/k=12/layout=paddings/seed=1132",
    },
}


@dataclass(frozen=True)
class DocumentMaskProblem(WordProblem):
    """The mask of documents. b, q, k: batch, q_len, k_len; queries and keys are the same tokens where the lengths are
    the same. layout: `packed`, documents 0, 1, 2; `falling`, likewise 9, 5, 2; `mixed`, 0 to 3 in any order; `padded`
    and `led`, packed and then, or before it, -1; `paddings`, mixed with -1 and -2; `single`, `alone`, one document or
    one for each token; `padding`, -1. causal: row i sees no key j > i."""

    form: ClassVar[str] = "document_mask"
    truths: ClassVar[tuple[str, ...]] = ("visible",)
    leading: ClassVar[str] = ""

    b: int = 1
    q: int = 1
    k: int = 1
    layout: str = "packed"
    causal: bool = False

    def check(self) -> None:
        """Raise InputError where the words do not fit together."""
        if self.layout not in LAYOUTS:
            raise InputError(f"layout is {self.layout!r}: use one of {', '.join(LAYOUTS)}")
        if self.causal and self.q != self.k:
            raise InputError(f"q is {self.q} and k {self.k}: use as many queries as keys where it is causal")

    def shapes(self) -> Shapes:
        """Return the dtype and shape of every stored tensor, by name."""
        return {
            "query_documents": ("int32", (self.b, self.q)),
            "key_documents": ("int32", (self.b, self.k)),
            "visible": ("float64", (self.b, 1, self.q, self.k)),
        }

    def inputs(self) -> Tensors:
        """Return the documents of the queries and of the keys."""
        draw = Source(self.seed)
        of_keys = self._documents(draw, "documents", self.k)
        of_queries = of_keys if self.q == self.k else self._documents(draw, "query_documents", self.q)
        return {"query_documents": of_queries.clone(), "key_documents": of_keys}

    def _documents(self, draw: Source, name: str, length: int) -> torch.Tensor:
        """Return the document of each token, int32 (batch, length)."""
        shape = (self.b, length)
        mixed = (draw.uniform(name, shape) * 4).astype(np.int32)
        packed = np.sort(np.minimum(mixed, 2), axis=1)
        end = length - length // 4
        behind = np.where(np.arange(length) < end, packed, -1)
        tokens = {
            "packed": packed,
            "falling": np.array([9, 5, 2])[packed],
            "mixed": mixed,
            "padded": behind,
            "led": np.roll(behind, length // 4, axis=1),
            "paddings": mixed - 2,
            "single": np.zeros(shape),
            "alone": np.broadcast_to(np.arange(length), shape),
            "padding": np.full(shape, -1),
        }
        return torch.from_numpy(tokens[self.layout].astype(np.int32))

    def truth(self, inputs: Tensors) -> Arrays:
        """Return 1 where a query sees a key, (batch, 1, q_len, k_len)."""
        of_queries, of_keys = (inputs[name].tolist() for name in ("query_documents", "key_documents"))
        visible = np.zeros((self.b, 1, self.q, self.k))
        for b, _, i, j in np.ndindex(visible.shape):
            document = of_queries[b][i]
            visible[b, 0, i, j] = document >= 0 and document == of_keys[b][j] and (j <= i or not self.causal)
        return {"visible": visible}

    def rules(self) -> tuple[str, ...]:
        """Return the ids of the rules that decide the answer."""
        table = {
            "document-mask.same-document": self.layout != "padding",
            "document-mask.causal": self.causal,
            "document-mask.padding": self.layout in ("padded", "led", "paddings", "padding"),
        }
        return tuple(rule for rule, decides in table.items() if decides)
