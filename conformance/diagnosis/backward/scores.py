"""Mistakes about the gradient of the scores: its factor, delta, what flows back through the lse, and the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from attnspec.conformance.diagnosis.backward import steps as right
from attnspec.conformance.diagnosis.backward.mistake import BackwardMistake
from attnspec.conformance.diagnosis.backward.steps import BackwardSteps, Pass
from attnspec.conformance.diagnosis.mistake import any_call, scaled
from attnspec.conformance.diagnosis.steps import default_scale
from attnspec.spec.call import Call

QUERY, KEY, VALUE, LSE = "backward.query", "backward.key", "backward.value", "backward.lse"

RANGE = "backward.recompute-range"
FAR = 88.0  # about the logarithm of the largest number of float32


def with_grad_lse(call: Call) -> bool:
    """Gradients flow back through the lse."""
    return call.grad_lse is not None


def in_factor(
    name: str, sentence: str, factor: Callable[[Pass], float], needs: Callable[[Call], bool] = any_call
) -> Iterator[BackwardMistake]:
    """Yield a mistake of the factor of the gradients of query and key, of both and of one."""
    for form, steps, rule in (
        ("those of query and key", BackwardSteps(query_scale=factor, key_scale=factor), QUERY),
        ("that of query", BackwardSteps(query_scale=factor), QUERY),
        ("that of key", BackwardSteps(key_scale=factor), KEY),
    ):
        yield BackwardMistake(name, sentence, needs, form=form, back=steps, rule=rule)


def in_scores(
    name: str, sentence: str, grad_scores: Callable[[Pass], torch.Tensor], rule: str = QUERY,
    needs: Callable[[Call], bool] = any_call,
) -> BackwardMistake:  # fmt: skip
    """Return a mistake of the gradient of the scores."""
    return BackwardMistake(name, sentence, needs, back=BackwardSteps(grad_scores=grad_scores), rule=rule)


def in_weights(
    name: str, sentence: str, weigh: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], form: str = "",
    rule: str = "flash.lse-recompute",
) -> BackwardMistake:  # fmt: skip
    """Return a mistake of the weights that are computed again."""
    return BackwardMistake(name, sentence, any_call, form=form, back=BackwardSteps(weigh=weigh), rule=rule)


def sums(at: Pass) -> torch.Tensor:
    """The sum of the exponentials of each row's scores less their maximum, (batch, q_heads, q_len, 1)."""
    top = at.trace.biased.masked_fill(~at.trace.visible, -torch.inf).amax(-1)
    return torch.exp(at.lse - top).nan_to_num(1.0)[..., None]


SCORES = (
    *in_factor("grad-unscaled", "the gradient lacks the factor scale", lambda at: 1.0),
    *in_factor("grad-scaled-twice", "the scale multiplies the gradient twice", lambda at: at.trace.scale**2),
    *in_factor("grad-scale-absolute", "the gradient is multiplied by abs(scale)",
               lambda at: abs(at.trace.scale), scaled),
    *in_factor("grad-scale-default", "the gradient is multiplied by the default scale",
               lambda at: default_scale(at.call), scaled),
    in_scores("grad-delta-missing", "delta, the sum of grad_output times output, is not subtracted",
              lambda at: at.weights * (at.grad_weights + at.grad_lse)),
    in_scores("grad-delta-added", "delta, the sum of grad_output times output, is added",
              lambda at: at.weights * (at.grad_weights + at.delta + at.grad_lse)),
    in_scores("grad-delta-unweighted", "delta is subtracted without the weight",
              lambda at: at.weights * (at.grad_weights + at.grad_lse) - at.delta),
    in_scores("grad-of-lse-dropped", "what flows back through the lse is dropped",
              lambda at: at.weights * (at.grad_weights - at.delta), LSE, with_grad_lse),
    in_scores("grad-of-lse-negated", "what flows back through the lse is subtracted",
              lambda at: at.weights * (at.grad_weights - at.delta - at.grad_lse), LSE, with_grad_lse),
    in_scores("grad-of-lse-unweighted", "what flows back through the lse is added without the weight",
              lambda at: at.weights * (at.grad_weights - at.delta) + at.grad_lse, LSE, with_grad_lse),
    in_scores("grad-of-lse-in-base-2", "what flows back through the lse is multiplied by log2 e",
              lambda at: at.weights * (at.grad_weights - at.delta + at.grad_lse / math.log(2)), LSE, with_grad_lse),
    in_weights("grad-weights-in-base-2", "the weights are exp2 of score minus lse, both natural",
               lambda scores, lse: torch.exp2(scores - lse)),
    in_weights("grad-lse-in-another-base", "the weights are computed from an lse in another base",
               lambda scores, lse: right.weigh(scores, lse * math.log(2)), "multiplied by ln 2"),
    in_weights("grad-lse-in-another-base", "the weights are computed from an lse in another base",
               lambda scores, lse: right.weigh(scores, lse / math.log(2)), "divided by ln 2"),
    in_weights("grad-lse-clamped", "the lse is clamped before the weights are computed from it",
               lambda scores, lse: right.weigh(scores, lse.clamp(min=-FAR)), f"to {-FAR:g} at least", RANGE),
    in_weights("grad-lse-clamped", "the lse is clamped before the weights are computed from it",
               lambda scores, lse: right.weigh(scores, torch.where(lse == torch.inf, lse, lse.clamp(max=FAR))),
               f"to {FAR:g} at most", RANGE),
    BackwardMistake("grad-unnormalised", "the weights of the backward pass are not divided by their sum", any_call,
                    form="those of all gradients", back=BackwardSteps(
                        grad_scores=lambda at: sums(at) * right.grad_scores(at),
                        value_weights=lambda at: sums(at) * at.weights), rule=VALUE),
    BackwardMistake("grad-unnormalised", "the weights of the backward pass are not divided by their sum", any_call,
                    form="those of value", back=BackwardSteps(value_weights=lambda at: sums(at) * at.weights),
                    rule=VALUE),
)  # fmt: skip
