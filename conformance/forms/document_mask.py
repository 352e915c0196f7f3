"""Form `document_mask`: a function `(query_documents, key_documents, *, is_causal)` that returns the mask of documents
in one sequence."""

from __future__ import annotations

from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.target import Target, Tensors, as_numbers, named, need, ran
from attnspec.golden.forms.document_mask import DocumentMaskProblem
from attnspec.golden.store import FormGolden
from attnspec.spec.dtypes import FLOAT32

RULE = "document-mask.same-document"
AXES: dict[str, tuple[str, ...]] = {"visible": ("batch", "head", "row", "key")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query_documents, key_documents)`, with is_causal where the case has it, and return the mask.

    query_documents: int32 (batch, q_len); key_documents: int32 (batch, k_len). The mask is bool, True where a slot
    takes part, of a shape that broadcasts to (batch, 1, q_len, k_len). Raises NotSupported where the signature lacks a
    word or the target refuses by NotImplementedError, Violation where it raises anything else.
    """
    problem = cast(DocumentMaskProblem, golden.case.problem)
    documents = [golden.inputs[name].clone() for name in ("query_documents", "key_documents")]
    options: dict[str, Any] = {"is_causal": True} if problem.causal else {}
    need(target, options)
    mask = named(ran(RULE, target, *documents, **options), ("visible",), RULE)["visible"]
    return {"visible": as_numbers(mask, (problem.b, 1, problem.q, problem.k), "bool", RULE)}


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return 0 for each slot. Raises InputError for an unknown class. Rule: `document-mask.same-document`."""
    arithmetic_of(FLOAT32, accuracy)
    return {"visible": torch.zeros_like(golden.truth["visible"])}
