"""The float64 references of packed and paged attention as targets of their forms, and what they say of a case."""

from __future__ import annotations

from typing import Any

import torch

from attnspec.conformance.forms import packed as packed_form
from attnspec.conformance.forms import paged as paged_form
from attnspec.golden.store import FormGolden
from attnspec.reference.packed import packed_attention, packed_backward
from attnspec.reference.paged import packed_paged_attention, packed_paged_backward, paged_attention, paged_backward
from attnspec.spec.call import Result

Tensors = dict[str, torch.Tensor]


def packed(query: torch.Tensor, *rest: torch.Tensor, is_causal: bool = False, causal_alignment: str = "upper_left",
           scale: float | None = None, window_size: tuple[int, int] | None = None,
           key_lengths: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The reference of chapter "packed" as a target of form `packed`."""
    key, value, cu_seqlens_q, cu_seqlens_k = rest
    options: dict[str, Any] = {"is_causal": is_causal, "causal_alignment": causal_alignment, "scale": scale}
    options |= {"window_size": window_size, "key_lengths": key_lengths}
    return stored(packed_attention(query, key, value, cu_seqlens_q, cu_seqlens_k, **options), query.dtype)


def paged(query: torch.Tensor, *rest: torch.Tensor, is_causal: bool = False, scale: float | None = None,
          cu_seqlens_q: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The references of chapter "paged" as a target of form `paged`."""
    key_pages, value_pages, block_table, key_lengths = rest
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale}
    if cu_seqlens_q is None:
        return stored(paged_attention(query, *rest, **options), query.dtype)
    pages, table = (key_pages, value_pages), (block_table, key_lengths)
    return stored(packed_paged_attention(query, *pages, cu_seqlens_q, *table, **options), query.dtype)


def stored(result: Result, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse of a result in the dtypes of a kernel."""
    assert result.lse is not None
    return result.output.to(dtype), result.lse.to(torch.promote_types(dtype, torch.float32))


def by_reference(golden: FormGolden) -> Tensors:
    """What the float64 references say of a case in float64 of form `packed` or `paged`."""
    x = golden.inputs
    if golden.case.form == "paged":
        return paged_form.run(paged, golden) if "grad_output" not in x else paged_by_reference(golden)
    given = [x[name] for name in (*packed_form.LEAVES, *packed_form.BOUNDARIES)]
    options = packed_form.words(golden)
    found = dict(zip(("output", "lse"), packed(*given, **options), strict=True))
    if "grad_output" in x:
        places = (*given[:3], x["grad_output"], *given[3:])
        gradients = packed_backward(*places, grad_lse=x.get("grad_lse"), **options)
        found |= {f"grad_{name}": getattr(gradients, name) for name in ("query", "key", "value")}
    return found


def paged_by_reference(golden: FormGolden) -> Tensors:
    """What the float64 references say of a case of form `paged` with gradients, theirs in closed form."""
    x, problem = golden.inputs, golden.case.problem
    pages, table = (x["key_pages"], x["value_pages"]), (x["block_table"], x["key_lengths"])
    options: dict[str, Any] = {"is_causal": problem.causal, "scale": float(problem.scale) if problem.scale else None}
    boundaries = (x["cu_seqlens_q"],) if "cu_seqlens_q" in x else ()
    forward, back = (packed_paged_attention, packed_paged_backward) if boundaries else (paged_attention, paged_backward)
    result = forward(x["query"], *pages, *boundaries, *table, **options)
    gradients = back(x["query"], *pages, x["grad_output"], *boundaries, *table, grad_lse=x.get("grad_lse"), **options)
    names = ("grad_query", "grad_key_pages", "grad_value_pages")
    assert result.lse is not None
    return {"output": result.output, "lse": result.lse, **dict(zip(names, gradients[:3], strict=True))}
