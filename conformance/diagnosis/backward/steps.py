"""The gradients of attention in float64 as a chain of named steps, each of which can be replaced, as in
`attnspec.conformance.diagnosis.steps`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from attnspec.conformance.budget import distances_of
from attnspec.conformance.diagnosis.steps import NoPrediction, Steps, Trace, attend
from attnspec.reference import alibi, backward
from attnspec.reference import softcap as caps
from attnspec.reference.sinks import backward as sinks_backward
from attnspec.spec.call import Call


@dataclass(frozen=True)
class Pass:
    """What the steps of a backward pass have to go by, float64. trace: of the forward steps, taken again; weights, lse:
    (batch, q_heads, q_len, k_len) and (batch, q_heads, q_len); grad_output: (batch, q_heads, q_len, value_dim);
    grad_weights: of the shape of the weights; delta: sum of grad_output times output, and grad_lse: what flows back
    through the lse, (batch, q_heads, q_len, 1)."""

    call: Call
    trace: Trace
    weights: torch.Tensor
    lse: torch.Tensor
    grad_output: torch.Tensor
    grad_weights: torch.Tensor
    delta: torch.Tensor
    grad_lse: torch.Tensor


def scale(at: Pass) -> float:
    """The factor of the gradients of query and key. Rules: `backward.query`, `backward.key`."""
    return at.trace.scale


def weigh(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """The weights by scores (batch, q_heads, q_len, k_len) and lse (batch, q_heads, q_len, 1) of the forward pass, inf
    for a row that sees nothing. Rule: `flash.lse-recompute`."""
    return torch.exp(scores - lse)


def grad_scores(at: Pass) -> torch.Tensor:
    """The gradient of the scores, (batch, q_heads, q_len, k_len). Rules: `backward.query`, `backward.lse`."""
    return at.weights * (at.grad_weights - at.delta + at.grad_lse)


def slope(at: Pass) -> torch.Tensor:
    """The derivative of the softcap. Rule: `softcap.gradient`."""
    return caps.slope(at.trace.scaled, at.call.softcap)


def no_slope(at: Pass) -> torch.Tensor:
    """A slope of 1: the bias is added behind the cap. Rule: `backward.bias`."""
    return torch.ones(())


def readers(grad: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """The gradient of keys or values, summed over those that read them. Rules: `backward.grouped`,
    `backward.broadcast`."""
    return backward.sum_readers(grad, heads)


def value_weights(at: Pass) -> torch.Tensor:
    """The weights by which a value has its gradient. Rule: `backward.value`."""
    return at.weights


def mask(at: Pass, grad: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
    """The gradient of an additive mask; grad: of the scores. Rule: `backward.bias`."""
    summed: torch.Tensor = grad.sum_to_size(attn_mask.shape)
    return summed


def sinks(at: Pass, sinks: torch.Tensor) -> torch.Tensor:
    """The gradient of the sinks, (q_heads,). Rule: `sinks.gradient`."""
    return sinks_backward(sinks, at.lse, at.delta[..., 0], at.grad_lse[..., 0])


def slopes(at: Pass, grad: torch.Tensor, alibi_slopes: torch.Tensor) -> torch.Tensor:
    """The gradient of the slopes of ALiBi; grad: of the scores. Rule: `alibi.gradient`."""
    return alibi.slopes_backward(grad, distances(at), alibi_slopes)


def distances(at: Pass) -> torch.Tensor:
    """How far each key lies from its row, (batch, q_heads, q_len, k_len)."""
    batch, heads, q_len, k_len = at.weights.shape
    return distances_of(at.call, (batch, heads, q_len, k_len))


@dataclass(frozen=True)
class BackwardSteps:
    """The steps in the order in which they are taken; by default the right ones.

    again: the forward steps by which the weights are computed again. by_own_sum: whether these weights are divided by
    their own sum, not by `weigh`.
    """

    again: Steps = field(default_factory=Steps)
    by_own_sum: bool = False
    weigh: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = weigh
    grad_scores: Callable[[Pass], torch.Tensor] = grad_scores
    query_slope: Callable[[Pass], torch.Tensor] = slope
    key_slope: Callable[[Pass], torch.Tensor] = slope
    mask_slope: Callable[[Pass], torch.Tensor] = no_slope
    query_scale: Callable[[Pass], float] = scale
    key_scale: Callable[[Pass], float] = scale
    key_readers: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = readers
    value_weights: Callable[[Pass], torch.Tensor] = value_weights
    value_readers: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = readers
    mask: Callable[[Pass, torch.Tensor, torch.Tensor], torch.Tensor] = mask
    sinks: Callable[[Pass, torch.Tensor], torch.Tensor] = sinks
    slopes: Callable[[Pass, torch.Tensor, torch.Tensor], torch.Tensor] = slopes


forward_pass = lru_cache(maxsize=2)(attend)  # the right pass of a call, and the wrong one of the forms of a mistake


def flow_back(call: Call, corner: str, steps: BackwardSteps) -> dict[str, torch.Tensor]:
    """Take the steps on a call and return its gradients by name, float64; corner: as of `attend`.

    Raises NoPrediction where a replaced step does not say what comes of the call.
    """
    at = pass_of(call, corner, steps)
    grad = steps.grad_scores(at)
    query, key = (grad * slope(at) for slope in (steps.query_slope, steps.key_slope))
    given = {
        "query": steps.query_scale(at) * (query @ at.trace.key),
        "key": steps.key_readers(steps.key_scale(at) * (key.transpose(-1, -2) @ at.trace.query), call.key),
        "value": steps.value_readers(steps.value_weights(at).transpose(-1, -2) @ at.grad_output, call.value),
    }
    wanted = call.differentiable()
    if "attn_mask" in wanted:
        given["attn_mask"] = steps.mask(at, grad * steps.mask_slope(at), wanted["attn_mask"])
    if "sinks" in wanted:
        given["sinks"] = steps.sinks(at, wanted["sinks"])
    if "alibi_slopes" in wanted:
        given["alibi_slopes"] = steps.slopes(at, grad, wanted["alibi_slopes"])
    return given


def pass_of(call: Call, corner: str, steps: BackwardSteps) -> Pass:
    """Return what the steps have to go by."""
    assert call.grad_output is not None, "a call with gradients"
    forward, again = forward_pass(call, corner, Steps()), forward_pass(call, corner, steps.again)
    if any(getattr(again, name).shape != getattr(forward, name).shape for name in ("query", "key", "value")):
        raise NoPrediction  # of gradients that would be of another shape
    lse = forward.result.lse
    assert lse is not None, "the steps give an lse"
    grad_output = call.grad_output.double()
    grad_weights = grad_output @ again.value.transpose(-1, -2)
    if steps.by_own_sum:
        weights = again.weights
        delta = (weights * grad_weights).sum(-1, keepdim=True)
    else:
        whole = lse.masked_fill(lse == -torch.inf, torch.inf)[..., None]
        weights = steps.weigh(steps.again.hide(again.biased, again.visible), whole)
        delta = (grad_output * forward.result.output).sum(-1, keepdim=True)
    grad_lse = torch.zeros_like(delta) if call.grad_lse is None else call.grad_lse.double()[..., None]
    return Pass(call, again, weights, lse, grad_output, grad_weights, delta, grad_lse)
