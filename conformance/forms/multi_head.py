"""Form `multi_head`: a module with the interface of the source article's, or a function of its parameters, and the
budget of its output (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.projections import inner_products, layer_error, shared_term
from attnspec.conformance.forms.target import Target, Tensors, accepts, named, need, ran
from attnspec.conformance.row_errors import CONFIDENCE, output_error
from attnspec.conformance.rows import Arithmetic, Rows, score_ties
from attnspec.golden.forms.multi_head import LAYERS, MultiHeadProblem
from attnspec.golden.store import FormGolden
from attnspec.reference import grouped_heads, masks
from attnspec.reference.multi_head import split_heads, visible_slots
from attnspec.spec.dtypes import format_of
from attnspec.spec.errors import InputError

RULE = "accuracy.multi-head-within-budget"
AXES: dict[str, tuple[str, ...]] = {"output": ("batch", "row", "column")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Run a module class, or a function, on a case and return its output, (batch, q_len, d_model).

    A subclass of `torch.nn.Module` is built as `target(d_model, num_heads)`, with `bias=False`, `d_k`, `d_v`, `kdim`,
    `vdim` or `num_kv_heads` where the case has them; its state is loaded from `w_q.weight`, `w_q.bias` and so on, and
    it is called in eval mode as `module(query, key, value, mask)`. Another callable is called as `target(query, key,
    value, mask, parameters=..., num_heads=...)` with that state, and `num_kv_heads` likewise. Raises NotSupported where
    a signature lacks a word or the target refuses by NotImplementedError, Violation where it raises anything else,
    InputError for a state of other names.
    """
    problem, inputs = cast(MultiHeadProblem, golden.case.problem), golden.inputs
    tokens = [inputs[name].clone() for name in ("query", "key", "value")]
    mask, state = inputs.get("mask"), parameters(inputs)
    with torch.no_grad():
        if isinstance(target, type) and issubclass(target, torch.nn.Module):
            module = build(target, problem, state)
            returned = ran(RULE, module, *tokens, mask)
        else:
            options = {"parameters": state, "num_heads": problem.heads, **_grouping(problem)}
            need(target, options)
            returned = ran(RULE, target, *tokens, mask, **options)
    if isinstance(returned, tuple | list) and returned:
        returned = returned[0]  # the output; what else there is, such as weights, has no vectors
    return named(returned, ("output",), RULE)


def parameters(inputs: Tensors) -> Tensors:
    """Return the parameters of a case as the state of the article's module: `w_q.weight` (out, in), `w_q.bias` (out,),
    and so on for w_k, w_v and w_o."""
    kinds = {"w": "weight", "b": "bias"}
    names = [(layer, letter) for layer in LAYERS for letter in kinds]
    return {
        f"w_{layer}.{kinds[letter]}": inputs[f"{letter}_{layer}"].clone()
        for layer, letter in names
        if f"{letter}_{layer}" in inputs
    }


def _grouping(problem: MultiHeadProblem) -> dict[str, int]:
    """Return what a target is told of key and value heads: nothing where there are as many as query heads."""
    return {"num_kv_heads": problem.kv_heads} if problem.kv_heads else {}


def build(target: type[torch.nn.Module], problem: MultiHeadProblem, state: Tensors) -> torch.nn.Module:
    """Return a module of a class with a state loaded, in eval mode and in the dtype of the state. Raises what `run`
    does."""
    options: dict[str, Any] = {name: size for name in ("kdim", "vdim") if (size := getattr(problem, name))}
    options |= _grouping(problem)
    if problem.d_k or problem.d_v:
        options = dict(zip(("d_k", "d_v"), problem.dims, strict=True)) | options
    if problem.no_bias:
        options["bias"] = False
    elif accepts(target, "bias"):
        options["bias"] = True
    need(target, options)
    module: torch.nn.Module = ran(RULE, target, problem.d_model, problem.heads, **options)
    if module.state_dict().keys() != state.keys():
        names = f"{', '.join(module.state_dict()) or 'no parameters'}: use {', '.join(state)}"
        raise InputError(f"the state of {target.__name__} has {names}, or name a function of the parameters")
    module = module.to(next(iter(state.values())).dtype)
    ran(RULE, module.load_state_dict, state)
    return module.eval()


@dataclass(frozen=True)
class _Module:
    """A case's numbers in float64. q, k, v: (batch, heads, length, dim) after the projections, with the key and value
    heads of k and v; e_q, e_k, e_v: how far they are off, in units of CONFIDENCE. w_o: (heads, d_model, d_v). visible:
    (batch, heads, q_len, k_len)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    e_q: torch.Tensor
    e_k: torch.Tensor
    e_v: torch.Tensor
    w_o: torch.Tensor
    visible: torch.Tensor


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of the output, float64 (batch, q_len, d_model). Raises InputError for an
    unknown class. Rule: `accuracy.multi-head-within-budget`."""
    inputs = golden.inputs
    a = arithmetic_of(format_of(inputs["query"].dtype), accuracy)
    module = _module(golden, a)
    batch, heads, q_len, _ = module.q.shape
    d_model = module.w_o.shape[1]
    error, random2 = (torch.zeros(batch, q_len, d_model, dtype=torch.float64) for _ in range(2))
    total, norm2 = torch.zeros_like(error), torch.zeros_like(error)
    for b in range(batch):
        error[b], random2[b], attended = _attention(module, b, a)
        parts = attended[..., None, :] * module.w_o[:, None]  # (heads, q_len, d_model, d_v)
        total[b], norm2[b] = parts.sum((0, -1)), (parts**2).sum((0, -1))
    terms = heads * module.w_o.shape[2]
    random2 += inner_products(terms, total, torch.sqrt(norm2), a.work) ** 2
    error += CONFIDENCE * torch.sqrt(random2)
    output = total
    if "b_o" in inputs:
        output = total + inputs["b_o"].double()
        error += a.output * total.abs()
    return {"output": error + a.output * (output.abs() + error) + a.flushed * (terms + 1) + a.tiny}


def _module(golden: FormGolden, a: Arithmetic) -> _Module:
    """Return the numbers of a case."""
    problem, inputs = cast(MultiHeadProblem, golden.case.problem), golden.inputs
    projected, errors = {}, {}
    for layer, tokens in zip("qkv", ("query", "key", "value"), strict=True):
        x, weight, bias = inputs[tokens], inputs[f"w_{layer}"], inputs.get(f"b_{layer}")
        exact = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
        heads = problem.heads if layer == "q" else problem.groups
        projected[layer] = split_heads(exact, heads)
        errors[layer] = split_heads(layer_error(x, weight, bias, a.work, a.output), heads)
    shape = (problem.b, problem.heads, problem.q, problem.k)
    mask = visible_slots(inputs["mask"]) if "mask" in inputs else None
    w_o = inputs["w_o"].double().reshape(problem.d_model, problem.heads, -1).transpose(0, 1)
    visible = masks.visible(shape, mask, False, "upper_left")
    q, k, v = (projected[layer] for layer in "qkv")
    e_q, e_k, e_v = (errors[layer] for layer in "qkv")
    return _Module(q, k, v, e_q, e_k, e_v, w_o, visible)


def _attention(module: _Module, b: int, a: Arithmetic) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the attention of one batch element may be off by in the output, (q_len, d_model); the square of what
    the layers around it are, in units of CONFIDENCE, likewise; and its outputs, (heads, q_len, d_v)."""
    q, w_o = module.q[b], module.w_o
    k, v = (grouped_heads.expand(x[b : b + 1], len(q))[0] for x in (module.k, module.v))
    scale = q.shape[-1] ** -0.5
    outward = v @ w_o.transpose(-1, -2)  # (heads, k_len, d_model): the values after the output projection
    rows = Rows.of(q, k, outward, None, module.visible[b], scale, replace(a, output=0.0, tiny=0.0))
    ties = score_ties(rows)
    slope = (scale * k)[:, None].expand(-1, q.shape[1], -1, -1)  # (heads, q_len, k_len, d_k)
    queries2 = (rows.unit * shared_term(rows, slope, module.e_q[b], rows.v)) ** 2
    attended = rows.p @ v
    alone2 = (a.output * attended) ** 2 + 2 * rows.count * (a.work * (rows.p @ v.abs())) ** 2  # its store, its sum
    own2 = queries2 + alone2 @ (w_o**2).transpose(-1, -2)  # (heads, q_len, d_model)
    return output_error(rows, ties).sum(0), own2.sum(0) + _of_groups(module, b, rows, ties, scale), attended


def _of_groups(module: _Module, b: int, rows: Rows, ties: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the square of what the projected keys and values may be off by in the output, in units of CONFIDENCE,
    (q_len, d_model).

    The query heads of a group read the same key, so an error of it moves them together: their parts are added before
    they are squared. In the shapes, g: key and value heads; h and i: query heads of a group; r: rows; j: keys.
    """
    e_k, e_v = module.e_k[b] ** 2, module.e_v[b] ** 2  # (g, j, d_k), (g, j, d_v)
    q, p, w_o, most = (x.view(len(e_k), -1, *x.shape[1:]) for x in (module.q[b], rows.p, module.w_o, ties))
    most = most.amax(1)  # (g, r, 1)
    moved = rows.p[..., None] * (rows.v[:, None] - rows.o[:, :, None])  # (heads, r, j, d_model)
    moved = (rows.unit[..., None] * moved).view(*q.shape[:3], *moved.shape[2:])
    together = scale**2 * torch.einsum("ghrd,gird,gjd->ghirj", q, q, e_k)
    keys2 = most * torch.einsum("ghirj,ghrjm,girjm->grm", together, moved, moved)
    weighed = torch.einsum("ghrj,girj,gje->ghire", p, p, e_v)
    values2 = most * torch.einsum("ghire,ghme,gime->grm", weighed, w_o, w_o)
    of_output: torch.Tensor = (keys2 + values2).clamp_min(0.0).sum(0)
    return of_output
