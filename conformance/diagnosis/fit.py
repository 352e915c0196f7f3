"""Whether a mistake reproduces what a kernel returned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnspec.conformance.comparison import Comparison, compare
from attnspec.conformance.diagnosis.evidence import Evidence, budget_of
from attnspec.conformance.diagnosis.mistake import Mistake
from attnspec.conformance.diagnosis.steps import NoPrediction, Trace, attend
from attnspec.spec.call import Result
from attnspec.spec.dtypes import FLOAT16, FLOAT64, format_of

SLACK = 2.0  # budgets that a mistaken result may be off: the budget was derived for right ones
FAR_NEARER = 0.25  # the mistake must be this much nearer to the kernel than the truth is, in the mean square
ROUNDED_SHARE = 0.98  # of elements that a lack of precision must reproduce; in the others a score rounds the other way
NOISE = 16.0  # budgets of a right result that a quick look lets a mistake's noise be
COARSE = 1e-2  # relative difference of numbers that a quick look takes for equal
NEARER = 0.5  # the same for small errors, of which the kernel's own rounding is a large part
UNSEEN = 0.25  # budgets between mistake and truth up to which the mistake makes no difference
TELLING = 2.0  # budgets between mistake and truth from which on an element tells one from the other


@dataclass(frozen=True)
class Fit:
    """What a mistake makes of a piece of evidence.

    holds: it reproduces the kernel's result. Numbers of elements: differs, where it predicts other than what is right;
    matched, where it does so clearly and the kernel agrees; telling, those of them that hold a number other than 0.
    """

    holds: bool
    differs: int = 0
    matched: int = 0
    telling: int = 0


UNDECIDED = Fit(holds=True)


def fit(mistake: Mistake, evidence: Evidence) -> Fit:
    """Return whether the mistake reproduces the evidence: output and lse, wherever they are right or wrong."""
    if not mistake.needs(evidence.call):
        return Fit(holds=not evidence.wrong)
    try:
        trace = attend(evidence.call, evidence.corner, mistake.steps)
    except NoPrediction:
        return UNDECIDED
    pairs = [(evidence.of_output, trace.result.output)]
    if evidence.of_lse is not None and trace.result.lse is not None:
        pairs.append((evidence.of_lse, trace.result.lse))
    if not all(nearer(found, predicted) for found, predicted in pairs):
        return Fit(holds=False)
    if all(invisible(found, predicted) for found, predicted in pairs):
        return Fit(holds=not evidence.wrong)
    for result, rounds, verdict in evidence.judged:
        if rounds == mistake.rounds and same_numbers(result, trace.result, evidence.of_lse is not None):
            return verdict  # type: ignore[no-any-return]
    verdict = measured(mistake, evidence, trace)
    evidence.judged.append((trace.result, mistake.rounds, verdict))
    return verdict


def same_numbers(one: Result, other: Result, with_lse: bool) -> bool:
    """Whether two predictions are the same."""
    if with_lse and one.lse is not None and other.lse is not None and not torch.equal(one.lse, other.lse):
        return False
    return torch.equal(one.output, other.output)


def nearer(found: Comparison, predicted: torch.Tensor) -> bool:
    """Whether the prediction is far nearer to the kernel than the truth is: a quick look, before any budget."""
    got, truth = found.got, found.truth
    close = (got - predicted).abs() <= COARSE * (1 + predicted.abs())
    same = close | (got == predicted) | (got.isnan() & predicted.isnan()) | (predicted.abs() > FLOAT16.largest)
    numbers = got.isfinite() & truth.isfinite() & predicted.isfinite()
    if not bool((same | numbers).all()):
        return False
    off = torch.where(numbers, got - predicted, 0.0)
    error = torch.where(numbers & found.wrong, FAR_NEARER * (got - truth), 0.0)
    noise = torch.where(numbers, NOISE * found.budget, 0.0)
    return bool(off.norm() <= error.norm() + noise.norm())


def invisible(found: Comparison, predicted: torch.Tensor) -> bool:
    """Whether the mistake makes no difference here."""
    same = (predicted == found.truth) | (predicted.isnan() & found.truth.isnan())
    return bool((same | ((predicted - found.truth).abs() <= UNSEEN * found.budget)).all())


def measured(mistake: Mistake, evidence: Evidence, trace: Trace) -> Fit:
    """Return the fit by the budget of a kernel that makes the mistake."""
    budget = budget_of(trace, evidence.call, evidence.accuracy, SLACK)
    fmt = format_of(evidence.call.query.dtype)
    parts = [(evidence.of_output, trace.result.output, budget.output, fmt)]
    if evidence.of_lse is not None and trace.result.lse is not None:
        parts.append((evidence.of_lse, trace.result.lse, budget.lse, FLOAT64))  # nothing overflows to -inf
    holds, differs, matched, telling = True, 0, 0, 0
    for found, predicted, allowed, form in parts:
        inside = compare(found.got, predicted, allowed, form).ratio <= 1
        off, error = (found.got - predicted).abs(), (found.got - found.truth).abs()
        clear = found.wrong & off.isfinite() & error.isfinite()
        holds = holds and float(inside.double().mean()) >= (ROUNDED_SHARE if mistake.rounds else 1)
        holds = holds and bool(off[clear].norm() <= NEARER * error[clear].norm())
        distance = compare(predicted, found.truth, found.budget, form).ratio
        differs += int((distance > 1).sum())
        proof = (distance > TELLING) & inside & ~(off > FAR_NEARER * error)
        matched += int(proof.sum())
        telling += int((proof & predicted.isfinite() & (predicted != 0)).sum())
    return Fit(holds, differs, matched, telling)
