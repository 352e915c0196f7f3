"""Mistakes about the gradients through a softcap, of sinks and of the slopes of ALiBi."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from attnspec.conformance.diagnosis.backward import steps as right
from attnspec.conformance.diagnosis.backward.mistake import ENDS, BackwardMistake
from attnspec.conformance.diagnosis.backward.steps import BackwardSteps, Pass
from attnspec.conformance.diagnosis.mistake import capped, grouped, sinking, sloped
from attnspec.conformance.diagnosis.slopes import OTHER, key_head
from attnspec.reference import softcap as caps
from attnspec.spec.call import Call

OfSlopes = Callable[[Pass, torch.Tensor, torch.Tensor], torch.Tensor]


def learned(call: Call) -> bool:
    """The slopes ask for a gradient."""
    return sloped(call) and call.learned_slopes


def learned_groups(call: Call) -> bool:
    """The slopes ask for a gradient, and there are fewer key heads than query heads."""
    return learned(call) and grouped(call)


def learned_for_all(call: Call) -> bool:
    """Slopes that ask for a gradient serve more than one batch element."""
    return learned(call) and call.alibi_slopes is not None and call.alibi_slopes.ndim == 1 < call.query.shape[0]


def of_cap(name: str, sentence: str, slope: Callable[[Pass], torch.Tensor]) -> Iterator[BackwardMistake]:
    """Yield a mistake of the slope of the softcap, in the gradients of query and key and of one."""
    for form, steps in (
        ("those of query and key", BackwardSteps(query_slope=slope, key_slope=slope)),
        ("that of query", BackwardSteps(query_slope=slope)),
        ("that of key", BackwardSteps(key_slope=slope)),
    ):
        yield BackwardMistake(name, sentence, capped, form=form, back=steps, rule="softcap.gradient")


def cap(at: Pass) -> float:
    """The softcap of the call."""
    assert at.call.softcap, "a call with a softcap"
    return at.call.softcap


def tanh(at: Pass) -> torch.Tensor:
    """tanh(s / c)."""
    return torch.tanh(at.trace.scaled / cap(at))


def of_sinks(
    name: str, sentence: str, wrong: Callable[[Pass, torch.Tensor], torch.Tensor], form: str = "", zero: str = ""
) -> BackwardMistake:
    """Return a mistake of the gradient of the sinks."""
    return BackwardMistake(
        name, sentence, sinking, form=form, back=BackwardSteps(sinks=wrong), rule="sinks.gradient", zero=zero
    )


def without_lse(at: Pass, sinks: torch.Tensor) -> torch.Tensor:
    """The gradient of the sinks without what flows back through the lse."""
    return right.sinks(replace(at, grad_lse=torch.zeros_like(at.grad_lse)), sinks)


def against_keys(at: Pass, sinks: torch.Tensor) -> torch.Tensor:
    """The gradient of the sinks by weights against the sum of the keys alone."""
    weights = torch.exp(sinks.double()[:, None] - at.lse)  # (batch, q_heads, q_len)
    return right.sinks(replace(at, lse=at.lse + torch.log1p(-weights.clamp_max(1 - 1e-6))), sinks)


def sinks_of(index: int, axis: int) -> Callable[[Pass, torch.Tensor], torch.Tensor]:
    """The gradient of the sinks by one batch element (axis 0) or one row of each (axis 2)."""

    def wrong(at: Pass, sinks: torch.Tensor) -> torch.Tensor:
        lse, delta, grad_lse = (x.select(axis, index).unsqueeze(axis) for x in (at.lse, at.delta, at.grad_lse))
        return right.sinks(replace(at, lse=lse, delta=delta, grad_lse=grad_lse), sinks)

    return wrong


def of_slopes(
    name: str, sentence: str, wrong: OfSlopes, needs: Callable[[Call], bool] = learned, form: str = "", zero: str = ""
) -> BackwardMistake:
    """Return a mistake of the gradient of the slopes."""
    return BackwardMistake(
        name, sentence, needs, form=form, back=BackwardSteps(slopes=wrong), rule="alibi.gradient", zero=zero
    )


def measured(dialect: str) -> OfSlopes:
    """The gradient of slopes whose distances are of the other `alibi_alignment` or `alibi_form`."""

    def wrong(at: Pass, grad: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        call = at.call.but(**{dialect: OTHER[getattr(at.call, dialect)]})
        return right.slopes(replace(at, call=call), grad, slopes)

    return wrong


def each_head(at: Pass, grad: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """The gradient of the slope of each head of each batch element, (batch, q_heads)."""
    return right.slopes(at, grad, slopes.expand(grad.shape[:2]))


def slopes_of(index: int) -> OfSlopes:
    """The gradient of the slopes by one batch element."""
    return lambda at, grad, slopes: each_head(at, grad, slopes)[index]


def of_key_heads(at: Pass, grad: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """The gradient of the slopes, summed over the query heads of a group."""
    summed = torch.zeros(grad.shape[0], at.call.key.shape[1]).double()
    heads = key_head(at.call)
    summed.index_add_(1, heads, each_head(at, grad, slopes))
    given: torch.Tensor = summed[:, heads].sum_to_size(slopes.shape)
    return given


OF_SOFTCAP = (
    *of_cap("grad-softcap-slope-missing", "the slope of the softcap is missing from the gradient", right.no_slope),
    *of_cap("grad-softcap-tanh", "the gradient is multiplied by tanh(s / c), not by its slope", tanh),
    *of_cap("grad-softcap-1-minus-tanh", "the slope of the softcap lacks a square", lambda at: 1 - tanh(at)),
    *of_cap("grad-softcap-over-the-cap", "the slope of the softcap is divided by the cap",
            lambda at: right.slope(at) / cap(at)),
    *of_cap("grad-softcap-of-capped-score", "the slope of the softcap is taken at the capped score",
            lambda at: caps.slope(at.trace.capped, cap(at))),
)  # fmt: skip
OF_SINKS = (
    of_sinks("grad-sinks-zero", "the gradient of the sinks is 0", lambda at, sinks: torch.zeros(sinks.shape).double(),
             zero="sinks"),
    of_sinks("grad-sinks-negated", "the gradient of the sinks has the wrong sign",
             lambda at, sinks: -right.sinks(at, sinks)),
    of_sinks("grad-sinks-without-lse", "the gradient of the sinks lacks what flows back through the lse", without_lse),
    of_sinks("grad-sinks-against-the-keys", "the weight of a sink is divided by the sum of the keys alone",
             against_keys),
    *(of_sinks("grad-sinks-of-one-batch", "one batch element alone gives to the gradient of the sinks",
               sinks_of(index, 0), f"the {word}")
      for index, word in ENDS),
    *(of_sinks("grad-sinks-of-one-row", "one row alone gives to the gradient of the sinks",
               sinks_of(index, 2), f"the {word}")
      for index, word in ENDS),
)  # fmt: skip
OF_SLOPES = (
    of_slopes("grad-slopes-zero", "the gradient of the slopes is 0",
              lambda at, grad, slopes: torch.zeros(slopes.shape).double(), zero="alibi_slopes"),
    of_slopes("grad-slopes-negated", "the gradient of the slopes has the wrong sign",
              lambda at, grad, slopes: -right.slopes(at, grad, slopes)),
    of_slopes("grad-slopes-scaled", "the gradient of the slopes is multiplied by the scale",
              lambda at, grad, slopes: at.trace.scale * right.slopes(at, grad, slopes)),
    of_slopes("grad-slopes-without-distance", "the gradient of the slopes lacks the distance",
              lambda at, grad, slopes: -grad.sum((2, 3)).sum_to_size(slopes.shape)),
    of_slopes("grad-slopes-other-corner", "the gradient of the slopes is measured from the other corner",
              measured("alibi_alignment")),
    of_slopes("grad-slopes-other-form", "the gradient of the slopes takes the other form of distance",
              measured("alibi_form")),
    of_slopes("grad-slopes-summed-over-heads", "the gradient of a slope is the sum over all heads",
              lambda at, grad, slopes: right.slopes(at, grad, slopes).sum(-1, keepdim=True).expand(slopes.shape)),
    of_slopes("grad-slopes-of-key-heads", "the gradient of a slope is the sum over a group of heads", of_key_heads,
              learned_groups),
    *(of_slopes("grad-slopes-of-one-batch", "one batch element alone gives to the gradient of the slopes",
                slopes_of(index), learned_for_all, f"the {word}") for index, word in ENDS),
    of_slopes("grad-slopes-mean-of-batch", "the gradient of the slopes is the mean over the batch, not the sum",
              lambda at, grad, slopes: each_head(at, grad, slopes).mean(0), learned_for_all),
)  # fmt: skip
