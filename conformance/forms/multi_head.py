"""Form `multi_head`: a module with the interface of the source article's, or a function of its parameters, and the
budget of its output (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.projections import apart_term, inner_products, layer_error, shared_term
from attnspec.conformance.forms.target import Target, Tensors, accepts, named, need, ran
from attnspec.conformance.row_errors import CONFIDENCE, output_error
from attnspec.conformance.rows import Arithmetic, Rows, score_ties
from attnspec.golden.forms.multi_head import LAYERS, MultiHeadProblem
from attnspec.golden.store import FormGolden
from attnspec.reference import masks
from attnspec.reference.multi_head import split_heads, visible_slots
from attnspec.spec.dtypes import format_of
from attnspec.spec.errors import InputError

RULE = "accuracy.multi-head-within-budget"
AXES: dict[str, tuple[str, ...]] = {"output": ("batch", "row", "column")}


def run(target: Target, golden: FormGolden) -> Tensors:
    """Run a module class, or a function, on a case and return its output, (batch, q_len, d_model).

    A subclass of `torch.nn.Module` is built as `target(d_model, num_heads)`, with `bias=False`, `d_k`, `d_v`, `kdim`
    or `vdim` where the case has them; its state is loaded from `w_q.weight`, `w_q.bias` and so on, and it is called in
    eval mode as `module(query, key, value, mask)`. Another callable is called as `target(query, key, value, mask,
    parameters=..., num_heads=...)` with that state. Raises NotSupported where a signature lacks a word or the target
    refuses by NotImplementedError, Violation where it raises anything else, InputError for a state of other names.
    """
    problem, inputs = cast(MultiHeadProblem, golden.case.problem), golden.inputs
    tokens = [inputs[name].clone() for name in ("query", "key", "value")]
    mask, state = inputs.get("mask"), parameters(inputs)
    with torch.no_grad():
        if isinstance(target, type) and issubclass(target, torch.nn.Module):
            module = build(target, problem, state)
            returned = ran(RULE, module, *tokens, mask)
        else:
            need(target, ("parameters", "num_heads"))
            returned = ran(RULE, target, *tokens, mask, parameters=state, num_heads=problem.heads)
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


def build(target: type[torch.nn.Module], problem: MultiHeadProblem, state: Tensors) -> torch.nn.Module:
    """Return a module of a class with a state loaded, in eval mode and in the dtype of the state. Raises what `run`
    does."""
    options: dict[str, Any] = {name: size for name in ("kdim", "vdim") if (size := getattr(problem, name))}
    if problem.d_k or problem.d_v:
        options = dict(zip(("d_k", "d_v"), problem.dims, strict=True)) | options
    if problem.no_bias:
        options["bias"] = False
    elif accepts(target, "bias"):
        options["bias"] = True
    need(target, options)
    module: torch.nn.Module = ran(RULE, target, problem.d_model, problem.heads, **options)
    if module.state_dict().keys() != state.keys():
        names = f"{', '.join(module.state_dict())}: use {', '.join(state)}"
        raise InputError(f"the state of {target.__name__} has {names}, or name a function of the parameters")
    module = module.to(next(iter(state.values())).dtype)
    ran(RULE, module.load_state_dict, state)
    return module.eval()


@dataclass(frozen=True)
class _Module:
    """A case's numbers in float64. q, k, v: (batch, heads, length, dim) after the projections; e_q, e_k, e_v: how far
    they are off, in units of CONFIDENCE. w_o: (heads, d_model, d_v). visible: (batch, heads, q_len, k_len)."""

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
        of_heads, of_layers2, attended = _attention(module, b, a)
        error[b], random2[b] = of_heads.sum(0), of_layers2.sum(0)
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
        projected[layer] = split_heads(exact, problem.heads)
        errors[layer] = split_heads(layer_error(x, weight, bias, a.work, a.output), problem.heads)
    shape = (problem.b, problem.heads, problem.q, problem.k)
    mask = visible_slots(inputs["mask"]) if "mask" in inputs else None
    w_o = inputs["w_o"].double().reshape(problem.d_model, problem.heads, -1).transpose(0, 1)
    visible = masks.visible(shape, mask, False, "upper_left")
    q, k, v = (projected[layer] for layer in "qkv")
    e_q, e_k, e_v = (errors[layer] for layer in "qkv")
    return _Module(q, k, v, e_q, e_k, e_v, w_o, visible)


def _attention(module: _Module, b: int, a: Arithmetic) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the attention of one batch element may be off by in the output, (heads, q_len, d_model); the square
    of what the layers around it are, in units of CONFIDENCE, likewise; and its outputs, (heads, q_len, d_v)."""
    q, k, v, w_o = module.q[b], module.k[b], module.v[b], module.w_o
    scale = q.shape[-1] ** -0.5
    outward = v @ w_o.transpose(-1, -2)  # (heads, k_len, d_model): the values after the output projection
    rows = Rows.of(q, k, outward, None, module.visible[b], scale, replace(a, output=0.0, tiny=0.0))
    ties = score_ties(rows)
    slope = (scale * k)[:, None].expand(-1, q.shape[1], -1, -1)  # (heads, q_len, k_len, d_k)
    of_keys = scale * torch.sqrt(q**2 @ (module.e_k[b] ** 2).transpose(-1, -2))  # (heads, q_len, k_len)
    scores2 = shared_term(rows, slope, module.e_q[b], rows.v) ** 2 + apart_term(rows, of_keys, ties) ** 2
    values2 = ties * (rows.p**2 @ module.e_v[b] ** 2)  # (heads, q_len, d_v)
    attended = rows.p @ v
    alone2 = (a.output * attended) ** 2 + 2 * rows.count * (a.work * (rows.p @ v.abs())) ** 2  # its store, its sum
    around2 = (values2 + alone2) @ (w_o**2).transpose(-1, -2)  # (heads, q_len, d_model)
    return output_error(rows, ties), rows.unit**2 * scores2 + around2, attended
