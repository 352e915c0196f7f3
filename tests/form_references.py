"""What the float64 reference says of a case of a form."""

from __future__ import annotations

from typing import Any

import torch

from attnspec.conformance.forms.hold import FORMS as HELD
from attnspec.golden.store import FormGolden
from attnspec.reference.additive import additive_attention
from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.reference.latent import absorbed_attention, latent_attention
from attnspec.reference.merge import Part, merge
from attnspec.reference.multi_head import MultiHeadAttention

Tensors = dict[str, torch.Tensor]


def by_reference(golden: FormGolden) -> Tensors:
    """Return what the float64 reference says."""
    return REFERENCES[golden.case.form](golden.inputs, golden.case.problem, golden)


def _merge(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    found = merge([Part(*part) for part in zip(x["outputs"], x["lses"], strict=True)])
    return {"output": found.output, "lse": found.lse}


def _additive(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    network = (x[name] for name in ("query", "key", "value", "w_q", "w_k", "v_a"))
    given = additive_attention(*network, attn_mask=x.get("attn_mask"), is_causal=problem.causal)
    return {"output": given.output, "lse": given.lse, "weights": given.weights}


def _multi_head(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    return {"output": HELD["multi_head"].run(MultiHeadAttention, golden)["output"]}


def _dropout(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    options = {**problem.options, "attn_mask": x.get("attn_mask"), "keep": x["keep"], "dropout_p": problem.dropout_p}
    result = attention(x["query"], x["key"], x["value"], **options)
    found = {"output": result.output, "lse": result.lse}
    if "grad_output" in x:
        if options["dropout_p"] == 1:
            return found | {f"grad_{name}": torch.zeros_like(x[name]) for name in ("query", "key", "value")}
        tensors = (x[name] for name in ("query", "key", "value", "grad_output"))
        gradients = backward(*tensors, grad_lse=x.get("grad_lse"), **options)
        found |= {f"grad_{name}": getattr(gradients, name) for name in ("query", "key", "value")}
    return found


def _latent(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    tensors = [x[name] for name in ("query", "latent", "key_rope", "w_uk", "w_uv")]
    options: dict[str, Any] = {"scale": problem.scale or None, "key_lengths": x.get("key_lengths")}
    if problem.causal != "none":
        options |= {"is_causal": True, "causal_alignment": problem.causal}
    work = absorbed_attention if problem.seed % 2 else latent_attention
    found = work(*tensors, **options)
    return {"output": found.output, "lse": found.lse}


REFERENCES = {
    "merge": _merge,
    "additive": _additive,
    "multi_head": _multi_head,
    "dropout": _dropout,
    "latent": _latent,
}
