"""Form `quantised`: a function `(query, key, value, key_scale, value_scale, *, ...)` over 8-bit keys and values, and
the budget of its results (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from typing import cast

import torch

from attnspec.conformance.budget import arithmetic_of
from attnspec.conformance.forms.projections import apart_term, shared_term
from attnspec.conformance.forms.quantised_gradient import product_roundoff, query_bound
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, repeated, there_and_back
from attnspec.conformance.outcome import Violation
from attnspec.conformance.row_errors import CONFIDENCE, lse_error, output_error
from attnspec.conformance.rows import Arithmetic, Rows, covariance, score_ties
from attnspec.golden.forms.quantised import QuantisedProblem
from attnspec.golden.store import FormGolden
from attnspec.reference import grouped_heads, lengths, masks
from attnspec.spec.dtypes import format_of

RULE = "accuracy.quantised-within-budget"
GRADIENT = "quantised.backward"
ROWS = ("batch", "head", "row")
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, "column"), "lse": ROWS, "grad_query": (*ROWS, "column")}
TENSORS = ("query", "key", "value", "key_scale", "value_scale")
NAN_CODE = 0x7F  # of e4m3


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(query, key, value, key_scale, value_scale)` and return output and, where it comes back, lse, and the
    gradient of the query, through autograd, where something flows back.

    key, value: int8 or float8_e4m3fn; the scales: float32, of the shapes in chapter "quantised". is_causal, scale,
    enable_gqa and key_lengths (int32) are given where the case has them; what lies beyond key_lengths is then NaN, or
    the lowest number in int8. Raises NotSupported where the signature lacks a word, where the target refuses by
    NotImplementedError and where no gradient comes back, Violation where it raises anything else.
    """
    problem = cast(QuantisedProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options = dict(problem.options)
    if "key_lengths" in inputs:
        options["key_lengths"] = inputs["key_lengths"]
        _spoil(inputs)
    given = [inputs[name] for name in TENSORS]
    return there_and_back(target, inputs, ("query",), given, options, RULE, GRADIENT)


def _spoil(inputs: Tensors) -> None:
    """Fill what lies beyond the key lengths, in place."""
    for b, length in enumerate(inputs["key_lengths"].tolist()):
        for name in ("key", "value"):
            stored, scale = inputs[name], inputs[f"{name}_scale"]
            if stored.dtype == torch.int8:
                stored[b, :, length:] = -128
            else:
                stored.view(torch.uint8)[b, :, length:] = NAN_CODE
            if scale.ndim and scale.shape[2] > 1:
                scale[b, :, length:] = torch.nan


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of output, lse and the gradient of the query, float64. Raises InputError for an
    unknown class. Rules: `accuracy.quantised-within-budget`, `quantised.product-rounding`, `quantised.backward`."""
    problem, inputs = cast(QuantisedProblem, golden.case.problem), golden.inputs
    a = arithmetic_of(format_of(inputs["query"].dtype), accuracy)
    key_lengths = inputs.get("key_lengths")
    keys, values = (
        grouped_heads.expand(inputs[name].double() * inputs[f"{name}_scale"].double(), problem.hq)
        for name in ("key", "value")
    )
    if key_lengths is not None:
        keys, values = (lengths.clear_absent(x, problem.b, key_lengths) for x in (keys, values))
    shape = (problem.b, problem.hq, problem.q, problem.k)
    visible = masks.visible(shape, None, problem.causal, "upper_left", key_lengths, None)
    scale = problem.scale or problem.d**-0.5
    found = [_errors(inputs["query"][b].double(), keys[b], values[b], visible[b], scale, a) for b in range(problem.b)]
    output, lse = (torch.stack(parts) for parts in zip(*found, strict=True))
    results = {"output": output, "lse": lse}
    if problem.grad:
        x = {"query": inputs["query"].double(), "key": keys, "value": values, "visible": visible}
        x |= {"grad_output": inputs["grad_output"].double()}
        x |= {"grad_lse": inputs.get("grad_lse", torch.zeros_like(lse)).double()[..., None]}
        of_key, of_value = (_of_heads(inputs[f"{name}_scale"], problem) for name in ("key", "value"))
        elements = ({name: tensor[b] for name, tensor in x.items()} for b in range(problem.b))
        given = zip(elements, of_key, of_value, strict=True)
        results["grad_query"] = torch.stack([query_bound(*tensors, scale, a).budget(a) for tensors in given])
    return results


def _of_heads(scale: torch.Tensor, problem: QuantisedProblem) -> torch.Tensor:
    """Return the scales for each query head, (batch, q_heads, 1 or k_len, 1 or dim) float64."""
    tail = scale.shape[2:] if scale.ndim else (1, 1)
    return grouped_heads.expand(scale.double().expand(problem.b, problem.kv_heads, *tail), problem.hq)


def _errors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float, a: Arithmetic
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what output (heads, q_len, value_dim) and lse (heads, q_len) of a batch element may be off by: what
    attention over dequantised keys and values may be, and the products with the scales. Chapter "accuracy", equation
    (10)."""
    rows = Rows.of(q, k, v, None, visible, scale, a)
    ties = score_ties(rows)
    stored = product_roundoff(a)
    slope = (scale * k)[:, None].expand(-1, q.shape[1], -1, -1)
    own, of_query = stored * rows.norm, stored * q.abs()
    moved = torch.hypot(shared_term(rows, slope, of_query, rows.v), apart_term(rows, own, ties))
    direct = stored * (rows.p @ rows.v.abs() + rows.o.abs()) + a.work * covariance(rows, rows.s).abs()
    output = output_error(rows, ties) + (1 + a.output) * rows.unit * (CONFIDENCE * moved + direct)
    own2 = ties * ((rows.p * own) ** 2).sum(-1, keepdim=True)
    shared = shared_term(rows, slope, of_query, None)
    lse = CONFIDENCE * torch.sqrt(own2 + shared**2) + a.work * (rows.p * rows.s).sum(-1, keepdim=True).abs()
    lse = lse_error(rows, ties) + torch.where(rows.count > 0, lse, 0.0).squeeze(-1)
    return output, lse


def laws(target: Target, golden: FormGolden, found: Tensors, budgets: Tensors) -> None:
    """Hold a target to what needs no vector: the code NaN in a value of e4m3 that every row sees gives NaN in its
    column, for the heads that share it, and nowhere else.

    Raises Violation. Rule: `mask.visible-nan`.
    """
    problem = cast(QuantisedProblem, golden.case.problem)
    if "mask.visible-nan" not in golden.case.rules:
        return
    value = golden.inputs["value"].clone()
    value.view(torch.uint8)[0, -1, -1, 0] = NAN_CODE
    dirty = FormGolden(golden.case, golden.tensors | {"value": value})
    what = "the code NaN in a value that every row sees"
    output = repeated("mask.visible-nan", what, run, target, dirty)["output"]
    right = torch.zeros(golden.truth["output"].shape, dtype=torch.bool)
    right[0, -(problem.hq // problem.kv_heads) :, :, 0] = True
    if output.shape != right.shape or not torch.equal(output.isnan(), right):
        raise Violation("mask.visible-nan", f"{what} does not give NaN in its column alone")


KEY, VALUE, KEY_SCALE, VALUE_SCALE = range(1, 5)
SOUND = "quantised-int8-float32"
REFUSALS = tuple(
    Refusal(f"quantised-refuses-{slug}", "quantised.scale-shape", SOUND, what, change)
    for slug, what, change in (
        ("scale-of-channels", "key_scale has one dimension, that of the channels",
         lambda sound: {KEY_SCALE: torch.ones(sound[KEY].shape[3])}),
        ("scale-of-heads", "value_scale has two dimensions, (heads, 1)",
         lambda sound: {VALUE_SCALE: torch.ones(sound[VALUE].shape[1], 1)}),
        ("scale-of-three-axes", "key_scale has three dimensions, (heads, 1, 1)",
         lambda sound: {KEY_SCALE: torch.ones(sound[KEY].shape[1], 1, 1)}),
        ("scale-of-other-heads", "key_scale has twice as many heads as the keys",
         lambda sound: {KEY_SCALE: torch.ones(1, 2 * sound[KEY].shape[1], 1, 1)}),
        ("integer-scale", "value_scale is int32", instead({VALUE_SCALE: torch.tensor(1, dtype=torch.int32)})),
        ("int16", "key is int16", lambda sound: {KEY: sound[KEY].short()}),
        ("unsigned", "key and value are uint8", lambda sound: {place: sound[place].byte() for place in (KEY, VALUE)}),
    )
)  # fmt: skip
