"""What the float64 reference says of a case of a form."""

from __future__ import annotations

from typing import Any

import packs
import torch

from attnspec.conformance.forms.context_parallel import held
from attnspec.conformance.forms.hold import FORMS as HELD
from attnspec.golden.forms.latent import LEAVES
from attnspec.golden.store import FormGolden
from attnspec.reference import alibi, document_masks, relative_bias
from attnspec.reference.additive import additive_attention
from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.reference.context_parallel import context_parallel_attention, context_parallel_backward
from attnspec.reference.latent import absorbed_attention, latent_attention, latent_backward
from attnspec.reference.merge import Part, merge
from attnspec.reference.multi_head import MultiHeadAttention
from attnspec.reference.quantised import quantise, quantised_attention, quantised_backward
from attnspec.reference.rope import frequencies, rotate

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
    tensors = [x[name] for name in LEAVES]
    options: dict[str, Any] = {"scale": problem.scale or None, "key_lengths": x.get("key_lengths")}
    if problem.causal != "none":
        options |= {"is_causal": True, "causal_alignment": problem.causal}
    work = absorbed_attention if problem.seed % 2 else latent_attention
    found = work(*tensors, **options)
    results = {"output": found.output, "lse": found.lse}
    if problem.grad:
        given = latent_backward(*tensors, x["grad_output"], grad_lse=x.get("grad_lse"), **options)
        results |= {f"grad_{name}": getattr(given, name) for name in LEAVES}
    return results


def _alibi_slopes(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    return {"slopes": alibi.slopes(problem.heads)}


def _alibi_bias(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    lengths = x.get("key_lengths")
    options = {"form": problem.side, "alignment": problem.corner, "key_lengths": lengths}
    found = alibi.bias(x["alibi_slopes"], alibi.distance(problem.q, problem.k, **options))
    if lengths is not None:
        found = torch.where(torch.arange(problem.k) < lengths[:, None, None, None], found, 0.0)
    return {"bias": found}


def _relative_bucket(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    options = {"num_buckets": problem.buckets, "max_distance": problem.max_distance}
    return {"buckets": relative_bias.bucket(x["distance"], bidirectional=not problem.causal, **options).double()}


def _relative_bias(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    options = {"max_distance": problem.max_distance, "bidirectional": not problem.causal}
    options["alignment"] = problem.corner
    found = {"bias": relative_bias.relative_bias(x["table"], problem.q, problem.k, **options)}
    if problem.grad:
        found["grad_table"] = relative_bias.relative_bias_backward(x["grad_bias"], problem.buckets, **options)
    return found


def _document_mask(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    if problem.causal:
        return {"visible": document_masks.causal_document(x["key_documents"]).double()}
    return {"visible": document_masks.same_document(x["query_documents"], x["key_documents"]).double()}


def _prefix_lm(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    found = document_masks.prefix_lm(problem.q, problem.k, x["prefix_lengths"], problem.corner)
    return {"visible": found.double()}


def _rope(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    def turned(tokens: torch.Tensor, positions: torch.Tensor, *, rotary_dim: int = 0, base: float = 10000.0,
               interleaved: bool = False) -> torch.Tensor:  # fmt: skip
        inv_freq = frequencies(rotary_dim or tokens.shape[-1], base)
        return rotate(tokens, positions, inv_freq, "interleaved" if interleaved else "half_split")

    return HELD["rope"].run(turned, golden)


def _quantise(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    return HELD["quantise"].run(quantise, golden)


def _quantised(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    tensors = [x[name] for name in ("query", "key", "value", "key_scale", "value_scale")]
    options = {**problem.options, "key_lengths": x.get("key_lengths")}
    found = quantised_attention(*tensors, **options)
    results = {"output": found.output, "lse": found.lse}
    if problem.grad:
        flow = {"grad_lse": x.get("grad_lse")}
        results["grad_query"] = quantised_backward(*tensors, x["grad_output"], **flow, **options)
    return results


def _context_parallel(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    dealt = [x[name] for name in ("query", "key", "value")], [held(x, "query"), held(x, "key")]
    options = {**problem.options, "attn_mask": x.get("attn_mask"), "enable_gqa": True}
    result = context_parallel_attention(*dealt[0], *dealt[1], **options)
    found = {"output": result.output, "lse": result.lse}
    if problem.grad:
        flow = {"grad_lse": x.get("grad_lse")}
        given = context_parallel_backward(*dealt[0], x["grad_output"], *dealt[1], **flow, **options)
        found |= {f"grad_{name}": getattr(given, name) for name in ("query", "key", "value")}
    return found


def _packs(x: Tensors, problem: Any, golden: FormGolden) -> Tensors:
    return packs.by_reference(golden)


REFERENCES = {
    "merge": _merge,
    "additive": _additive,
    "multi_head": _multi_head,
    "dropout": _dropout,
    "latent": _latent,
    "alibi_slopes": _alibi_slopes,
    "alibi_bias": _alibi_bias,
    "relative_bucket": _relative_bucket,
    "relative_bias": _relative_bias,
    "document_mask": _document_mask,
    "prefix_lm": _prefix_lm,
    "rope": _rope,
    "quantise": _quantise,
    "quantised": _quantised,
    "packed": _packs,
    "paged": _packs,
    "context_parallel": _context_parallel,
}
