"""Whether a mistake reproduces what a kernel returned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnspec.conformance.comparison import Comparison, compare
from attnspec.conformance.diagnosis.evidence import Evidence, Prediction
from attnspec.conformance.diagnosis.mistake import Mistake, Numbers
from attnspec.conformance.diagnosis.steps import NoPrediction
from attnspec.spec.dtypes import FLOAT16

FAR_NEARER = 0.25  # the mistake must be this much nearer to the kernel than the truth is, in the mean square
ROUNDED_SHARE = 0.98  # of elements that a lack of precision must reproduce; in the others a score rounds the other way
NOISE = 16.0  # budgets of a right result that a quick look lets a mistake's noise be
COARSE = 1e-2  # relative difference of numbers that a quick look takes for equal
NEARER = 0.5  # the same for small errors, of which the kernel's own rounding is a large part
UNSEEN = 0.25  # budgets between mistake and truth up to which the mistake makes no difference
FRACTION = 0.05  # the kernel's error may be this much more or less than the mistake: else it is half of it, or a third
TELLING = 2.0  # budgets between mistake and truth from which on an element tells one from the other


@dataclass(frozen=True)
class Fit:
    """What a mistake makes of a piece of evidence.

    holds: it reproduces the kernel's result. Numbers of elements: differs, where it predicts other than what is right;
    matched, where it does so clearly and the kernel agrees; telling, those of them that hold a number, and not 0.
    """

    holds: bool
    differs: int = 0
    matched: int = 0
    telling: int = 0


UNDECIDED = Fit(holds=True)


def fit(mistake: Mistake, evidence: Evidence) -> Fit:
    """Return whether the mistake reproduces the evidence: all that the kernel gave, wherever it is right or wrong."""
    if not mistake.needs(evidence.call):
        return Fit(holds=not evidence.wrong)
    try:
        prediction = evidence.predicted(mistake)
    except NoPrediction:
        return UNDECIDED
    pairs = [(evidence.found[name], number) for name, number in prediction.numbers.items()]
    if not all(nearer(found, predicted) for found, predicted in pairs):
        return Fit(holds=False)
    if all(invisible(found, predicted) for found, predicted in pairs):
        return Fit(holds=not evidence.wrong)
    for numbers, rounds, verdict in evidence.judged:
        if rounds == mistake.rounds and same_numbers(numbers, prediction.numbers):
            return verdict
    verdict = measured(mistake, evidence, prediction)
    evidence.judged.append((prediction.numbers, mistake.rounds, verdict))
    return verdict


def same_numbers(one: Numbers, other: Numbers) -> bool:
    """Whether two predictions are the same."""
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


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


def measured(mistake: Mistake, evidence: Evidence, prediction: Prediction) -> Fit:
    """Return the fit by the budget of a kernel that makes the mistake."""
    allowed = prediction.allowed()
    share = min(evidence.share, ROUNDED_SHARE) if mistake.rounds else evidence.share
    holds, differs, matched, telling = True, 0, 0, 0
    for name, predicted in prediction.numbers.items():
        found, form = evidence.found[name], evidence.formats[name]
        inside = compare(found.got, predicted, allowed[name], form).ratio <= 1
        off, error = (found.got - predicted).abs(), (found.got - found.truth).abs()
        clear = found.wrong & off.isfinite() & error.isfinite()
        holds = holds and float(inside.double().mean()) >= share
        holds = holds and bool(off[clear].norm() <= NEARER * error[clear].norm())
        holds = holds and (mistake.rounds or whole(found, predicted))
        distance = compare(predicted, found.truth, found.budget, form).ratio
        differs += int((distance > 1).sum())
        proof = (distance > TELLING) & inside & ~(off > FAR_NEARER * error)
        matched += int(proof.sum())
        telling += int((proof & predicted.isfinite() & (predicted.abs() > found.budget)).sum())
    return Fit(holds, differs, matched, telling)


def whole(found: Comparison, predicted: torch.Tensor) -> bool:
    """Whether the kernel's error, projected on the mistake, is the whole of it, and no fraction or multiple. Where the
    mistake is no larger than what an honest kernel may be off, nothing is said."""
    numbers = found.got.isfinite() & found.truth.isfinite() & predicted.isfinite()
    error, mistake = (torch.where(numbers, x - found.truth, 0.0) for x in (found.got, predicted))
    size = mistake.norm()
    if size <= torch.where(numbers, found.budget, 0.0).norm():
        return True
    along = (error * (mistake / size)).sum() / size
    return not bool((along - 1).abs() > FRACTION)
