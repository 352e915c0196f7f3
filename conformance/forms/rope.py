"""Form `rope`: a function `(x, positions, *, rotary_dim, base, interleaved)` that rotates queries or keys, and the
budget of what it returns (chapter "accuracy", "Budgets of the forms")."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch

from attnspec.conformance.budget import arithmetic_of, error_budget
from attnspec.conformance.forms.refusals import Refusal, instead
from attnspec.conformance.forms.target import Target, Tensors, named, need, ran
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.forms.rope import RopeProblem
from attnspec.golden.store import FormGolden
from attnspec.reference.attention import attention
from attnspec.reference.rope import frequencies, from_pairs, pairs
from attnspec.spec.call import Call
from attnspec.spec.dtypes import format_of

RULE = "accuracy.rope-within-budget"
GRADIENT = "rope.gradient"
ROWS = ("batch", "head", "row")
AXES: dict[str, tuple[str, ...]] = {"output": (*ROWS, "column"), "lse": ROWS, "grad_query": (*ROWS, "column")}
ANGLE = 2.0**-20  # relative error of an angle (rule `rope.precision`)
TRIGONOMETRIC = 2.0**-21  # absolute error of a float32 cosine or sine: `__cosf` is off by 2^-21.2 (CUDA guide)


def run(target: Target, golden: FormGolden) -> Tensors:
    """Call `target(x, positions)` and return what comes back as `output`, and the gradient of x as `grad_query`.

    x: (batch, heads, length, head_dim), stored as `query`; positions: (length,) or (batch, length), int64. rotary_dim,
    base and interleaved are given where they are not head_dim, 10000 and False. Where the case has keys, they are
    rotated too, and output and lse are those of float64 attention over what came back, stored in the dtypes of a call.
    Raises NotSupported where the signature lacks a word, where it refuses by NotImplementedError and where no gradient
    comes back, Violation where it raises anything else.
    """
    problem = cast(RopeProblem, golden.case.problem)
    inputs = {name: tensor.clone() for name, tensor in golden.inputs.items()}
    options: dict[str, Any] = {"rotary_dim": problem.turned} if problem.turned < problem.d else {}
    options |= {} if problem.base == RopeProblem.base else {"base": problem.base}
    options |= {"interleaved": True} if problem.interleaved else {}
    need(target, options)
    query, positions = inputs["query"].requires_grad_(problem.grad), inputs["positions"].long()
    with torch.set_grad_enabled(problem.grad):
        rotated = _rotated(target, query, positions, options)
        if problem.keys:
            key = _rotated(target, inputs["key"], problem.key_positions, options)
            return _attended(rotated, key, inputs["value"], problem)
    if not problem.grad:
        return {"output": rotated}
    if not rotated.requires_grad:
        raise NotSupported("no gradient comes back: what came back has no grad_fn", declared=False)
    back: Any = ran(GRADIENT, torch.autograd.grad, rotated, query, inputs["grad_output"], allow_unused=True)
    gradient = torch.zeros_like(query) if back[0] is None else back[0]
    return {"output": rotated.detach(), "grad_query": gradient.detach()}


def _rotated(target: Target, x: torch.Tensor, positions: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """Return what a target makes of queries or keys. Raises Violation for another dtype or shape."""
    rotated = named(ran(RULE, target, x, positions, **options), ("output",), RULE)["output"]
    if (rotated.dtype, rotated.shape) != (x.dtype, x.shape):
        said = f"{rotated.dtype} {tuple(rotated.shape)}"
        raise Violation(RULE, f"output is {said}, should be {x.dtype} {tuple(x.shape)}")
    return rotated


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, problem: RopeProblem) -> Tensors:
    """Return output and lse of attention in float64, rounded to the dtypes of a call."""
    found = attention(query.double(), key.double(), value.double(), attn_mask=_visible(problem))
    assert found.lse is not None, "the reference has it"
    wide = torch.promote_types(value.dtype, torch.float32)
    return {"output": found.output.to(value.dtype), "lse": found.lse.to(wide)}


def _visible(problem: RopeProblem) -> torch.Tensor:
    """Return which keys a query sees, bool (q_len, k_len): with causal, those of no later position."""
    places = problem.first + torch.arange(problem.q)
    return (torch.arange(problem.keys) <= places[:, None]) | (not problem.causal)


def wrong_rule(name: str, wrong: torch.Tensor, golden: FormGolden) -> str | None:
    """Return the rule of elements that must keep their bits, where no other is wrong; None for others."""
    problem = cast(RopeProblem, golden.case.problem)
    if problem.keys:
        return "rope.distance" if problem.shift else None
    if not wrong[..., : problem.turned].any():
        return "rope.partial"
    return "rope.position" if not wrong[_places(golden) != 0].any() else None


def _places(golden: FormGolden) -> torch.Tensor:
    """Return the position of every token, (batch, heads, length)."""
    batch, heads, length, _ = golden.inputs["query"].shape
    return golden.inputs["positions"].expand(batch, length)[:, None].expand(-1, heads, -1)


def budgets(golden: FormGolden, accuracy: str = "fused") -> Tensors:
    """Return the budget of each element of what `run` returns, float64. Raises InputError for an unknown class.
    Rules: `accuracy.rope-within-budget`, `rope.precision`."""
    problem, inputs = cast(RopeProblem, golden.case.problem), golden.inputs
    of = partial(rotation_budget, problem=problem, accuracy=accuracy)
    rotated, error = of(inputs["query"], inputs["positions"])
    if problem.keys:
        return _attention_budget(golden, rotated, error, *of(inputs["key"], problem.key_positions))
    found = {"output": error}
    if problem.grad:
        found["grad_query"] = of(inputs["grad_output"], -inputs["positions"])[1]
    return found


def rotation_budget(
    x: torch.Tensor, positions: torch.Tensor, problem: RopeProblem, accuracy: str = "fused"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rotated queries or keys, and how far each element may be off, float64 (batch, heads, length, head_dim).

    x: as stored; positions: of either sign. Elements beyond the rotary dimension and tokens at position 0 are exact.
    Chapter "accuracy", equation (9).
    """
    a = arithmetic_of(format_of(x.dtype), accuracy)
    layout = "interleaved" if problem.interleaved else "half_split"
    angle = positions.double()[..., None] * frequencies(problem.turned, problem.base)
    angle = angle if angle.ndim == 2 else angle[:, None]  # (..., length, pairs)
    cos, sin = torch.cos(angle), torch.sin(angle)
    x1, x2 = pairs(x.double()[..., : problem.turned], layout)
    off = ANGLE * angle.abs()
    step, found = format_of(x.dtype).smallest_subnormal / 2, []
    for y, other, parts in (
        (x1 * cos - x2 * sin, x1 * sin + x2 * cos, (x1 * cos).abs() + (x2 * sin).abs()),
        (x1 * sin + x2 * cos, x1 * cos - x2 * sin, (x1 * sin).abs() + (x2 * cos).abs()),
    ):
        mass = x1.abs() + x2.abs()
        error = off * other.abs() + off**2 / 2 * y.abs() + TRIGONOMETRIC * mass + a.work * (parts + y.abs())
        if a.scores:
            error = error + 2 * a.scores * parts + step * (mass + 2)
        error = error + a.output * (y.abs() + error) + a.flushed * (mass + 3) + a.tiny
        found.append((y, torch.where(angle == 0, 0.0, error)))
    (y1, e1), (y2, e2) = found
    rest = x.double()[..., problem.turned :]
    rotated = torch.cat([from_pairs(y1, y2, layout), rest], -1)
    return rotated, torch.cat([from_pairs(e1, e2, layout), torch.zeros_like(rest)], -1)


def _attention_budget(
    golden: FormGolden, query: torch.Tensor, e_q: torch.Tensor, key: torch.Tensor, e_k: torch.Tensor
) -> Tensors:
    """Return how far attention may be off where its queries and keys are off by e_q and e_k. Chapter "accuracy",
    "Rotation"."""
    problem, value = cast(RopeProblem, golden.case.problem), golden.inputs["value"]
    visible, scale = _visible(problem), problem.d**-0.5
    moved = e_q @ key.abs().transpose(-1, -2) + (query.abs() + e_q) @ e_k.transpose(-1, -2)
    shift = scale * torch.where(visible, moved, 0.0).amax(-1)  # (batch, heads, q_len), of any score
    scores = torch.where(visible, scale * (query @ key.transpose(-1, -2)), -torch.inf)
    weights, lse = torch.softmax(scores, -1), torch.logsumexp(scores, -1)
    output = weights @ value.double()
    apart = (value.double()[:, :, None] - output[..., None, :]).abs()  # (batch, heads, q_len, keys, value_dim)
    exact = error_budget(Call(query, key, value.double(), attn_mask=visible), accuracy="exact")
    error = exact.output + torch.expm1(2 * shift)[..., None] * (weights[..., None] * apart).sum(-2)
    of_lse, a = exact.lse + shift, arithmetic_of(format_of(value.dtype))
    return {
        "output": error + a.output * (output.abs() + error) + a.tiny,
        "lse": of_lse + a.work * (lse.abs() + of_lse),
    }


SOUND, OF_BATCH = "rope-half-split-float32", "rope-chunk-ragged-bfloat16"
X, POSITIONS = 0, 1
REFUSALS = tuple(
    Refusal(f"rope-refuses-{slug}", "rope.shape", case, what, change)
    for slug, case, what, change in (
        ("odd-rotary-dim", SOUND, "rotary_dim is 3", instead({"rotary_dim": 3})),
        ("rotary-dim-0", SOUND, "rotary_dim is 0", instead({"rotary_dim": 0})),
        ("rotary-dim-above", SOUND, "rotary_dim is 2 more than the head dimension",
         lambda sound: {"rotary_dim": sound[X].shape[-1] + 2}),
        ("odd-head-dim", SOUND, "the head dimension is odd, without rotary_dim", lambda sound: {X: sound[X][..., 1:]}),
        ("base-0", SOUND, "base is 0", instead({"base": 0.0})),
        ("base-negative", SOUND, "base is -10000", instead({"base": -10000.0})),
        ("base-infinite", SOUND, "base is inf", instead({"base": float("inf")})),
        ("one-position", SOUND, "there is one position for several tokens",
         lambda sound: {POSITIONS: sound[POSITIONS][..., :1]}),
        ("position-a-batch", OF_BATCH, "there is one position for the tokens of each batch element",
         lambda sound: {POSITIONS: sound[POSITIONS][:, :1]}),
        ("too-many-positions", SOUND, "there is one position more than tokens",
         lambda sound: {POSITIONS: torch.arange(sound[X].shape[-2] + 1)}),
    )
)  # fmt: skip
