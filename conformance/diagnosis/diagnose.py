"""From a failing case to the name of the known mistake that reproduces it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.diagnosis.diagnosis import Diagnosis
from attnspec.conformance.diagnosis.evidence import Evidence, usable
from attnspec.conformance.diagnosis.fit import fit
from attnspec.conformance.diagnosis.mistake import Mistake, Numbers
from attnspec.conformance.diagnosis.recorder import Pair, replayed
from attnspec.conformance.diagnosis.session import BackwardSession, Session
from attnspec.conformance.diagnosis.steps import NoPrediction
from attnspec.conformance.kernel import Kernel
from attnspec.spec.call import Call, Gradients
from attnspec.spec.problem import Problem

NUMERIC = ("golden", "probe", "regime")  # families whose failures are wrong numbers, wherever they show
PIECES = 3  # of wrong evidence, and of right evidence, that a mistake is held against
ENOUGH = 8  # telling elements: fewer are no proof without a second problem
APART = 1e-2  # of the largest number: predictions further apart than this can be told apart by one more call
PATIENCE = 4.0  # seconds of fruitless search, after which only what was found before is tried
CHECKS = 3  # problems that a diagnosis is held against before it is given
SIZES: tuple[Callable[[Problem], int], ...] = (  # of which one more is tried: some mistakes are a factor made of one
    lambda problem: problem.batch,
    lambda problem: problem.head_dim,
    lambda problem: problem.q_heads // problem.kv_heads,
)
FINELY_APART = 1e-4  # the same, where a lack of precision is among the candidates
MOST_NAMES = 3  # that a diagnosis gives; more is no diagnosis


def diagnose(kernel: Kernel, case: Case, evidence: Sequence[Pair] | None = None) -> Diagnosis | None:
    """Return which known mistakes reproduce the kernel's failure in a case; None where none does.

    evidence: the calls that failed and the kernel's answers; by default the case's check is run once more. The forward
    pass is looked at first: where it is wrong, the gradients must be. Never raises: a failure must be reported with or
    without a diagnosis.
    """
    if case.problem.dropout:  # no mistake of the catalogue knows the draws
        return None
    try:
        with torch.no_grad():
            pairs = replayed(kernel, case) if evidence is None else evidence
            backward = [pair for pair in pairs if isinstance(pair[1], Gradients)]
            forward = [pair for pair in pairs if not isinstance(pair[1], Gradients)]
            if forward and (found := _diagnose(session_of(kernel, Session), case, forward, elsewhere=not backward)):
                return found
            return _diagnose(session_of(kernel, BackwardSession), case, backward) if backward else None
    except Exception:  # a diagnosis is a courtesy
        return None


@cache
def session_of(kernel: Kernel, kind: type[Session]) -> Session:
    """Return the one session of a kernel: of its results, or of its gradients."""
    return kind(kernel)


def _diagnose(session: Session, case: Case, pairs: Sequence[Pair], elsewhere: bool = False) -> Diagnosis | None:
    start = time.monotonic()
    seen = [session.evidence(*pair, case.problem) for pair in pairs if usable(pair[0])]
    wrong = sorted((piece for piece in seen if piece.wrong), key=lambda piece: piece.size)
    right = [piece for piece in seen if not piece.wrong]
    if not wrong and elsewhere and session.lost < PATIENCE and case.family in NUMERIC:
        wrong = first_wrong(session, case.problem)
    if not wrong:
        return None
    pieces = wrong[:PIECES] + right[:PIECES]
    for known in session.found:
        if held := reproducing(known.mistakes, pieces):
            return replace(known, mistakes=tuple(held))
    if session.lost > PATIENCE:
        return None
    diagnosis = settled(session, case.problem, reproducing(session.catalogue, pieces))
    if diagnosis is not None:
        session.found.append(diagnosis)
    else:
        session.lost += time.monotonic() - start
    return diagnosis


def first_wrong(session: Session, problem: Problem) -> list[Evidence]:
    """Return what the kernel makes of the first problem of the battery on which it is wrong; nothing where none is."""
    for other in session.battery(problem):
        outcome = session.outcome(other)
        if outcome is not None and outcome.wrong:
            return [outcome]
    return []


def reproducing(mistakes: Iterable[Mistake], pieces: Sequence[Evidence]) -> dict[Mistake, int]:
    """Return the mistakes that reproduce every piece of evidence, with the number of telling elements."""
    found = {}
    for mistake in mistakes:
        telling = 0
        for piece in pieces:
            result = fit(mistake, piece)
            if not result.holds or (piece is pieces[0] and not result.differs):
                break
            telling += result.telling
        else:
            found[mistake] = telling
    return found


def settled(session: Session, problem: Problem, candidates: dict[Mistake, int]) -> Diagnosis | None:
    """Hold the candidates against the battery until one name is left and is proven; None where that fails."""
    others = list(session.battery(problem))
    alone = len({mistake.name for mistake in candidates}) == 1
    for other in others:
        if not candidates or (len(candidates) == 1 and min(candidates.values()) >= ENOUGH):
            break
        if worth_a_run(session, candidates, other):
            candidates = session.filtered(candidates, other)
    proven = [mistake for mistake, telling in candidates.items() if telling >= ENOUGH]
    found = Diagnosis(tuple(sorted(proven, key=session.catalogue.index)))
    if len(found.names) != 1:
        return found if 0 < len(found.names) <= MOST_NAMES else None
    checked = confirmed(session, found, problem, others)
    return None if checked is None or (checked.but_not and not alone) else checked


def confirmed(session: Session, diagnosis: Diagnosis, case: Problem, others: Iterable[Problem]) -> Diagnosis | None:
    """Hold a diagnosis against a few more problems on which it predicts a wrong result, of more than one size.

    Where the kernel is right on one of those most like the case, the mistake is one of some calls alone, and the
    diagnosis says so. Where it is wrong in another way, the name does not say what is wrong: None.
    """
    mistake, checked = diagnosis.mistakes[0], [case]
    for other in others:
        beyond = len(checked) > CHECKS
        if (beyond and not of_new_size(other, checked)) or not worth_a_run(session, {mistake: 0}, other):
            continue
        outcome = session.outcome(other)
        if outcome is None:
            continue
        if not fit(mistake, outcome).holds:
            if outcome.wrong:
                return None
            if not beyond:
                return replace(diagnosis, but_not=str(other))
        checked.append(other)
    return diagnosis


def of_new_size(problem: Problem, checked: Sequence[Problem]) -> bool:
    """Whether a problem has another batch, head_dim or group, where those before it have the same one."""
    return any({size(other) for other in checked} == {size(checked[0])} != {size(problem)} for size in SIZES)


def worth_a_run(session: Session, candidates: dict[Mistake, int], problem: Problem) -> bool:
    """Whether a problem tells candidates apart, or one that is not proven yet from the truth."""
    call, corner = session.call(problem), session.corner(problem)
    if not any(mistake.needs(call) for mistake in candidates):
        return False
    truth = session.right.numbers(call, corner)
    predictions = {mistake: predicted(mistake, call, corner, truth) for mistake in candidates}
    known = [numbers for numbers in predictions.values() if numbers is not None]
    far = FINELY_APART if any(mistake.rounds for mistake in candidates) else APART
    if any(apart(known[0], other, far) for other in known[1:]):
        return True
    unproven = [numbers for mistake, numbers in predictions.items() if candidates[mistake] < ENOUGH]
    return any(numbers is not None and apart(truth, numbers, far) for numbers in unproven)


def predicted(mistake: Mistake, call: Call, corner: str, truth: Numbers) -> Numbers | None:
    """Return what a kernel that makes the mistake gives, None where the mistake does not say."""
    if not mistake.needs(call):
        return truth
    try:
        return mistake.numbers(call, corner)
    except NoPrediction:
        return None


def apart(one: Numbers, other: Numbers, far: float) -> bool:
    """Whether two predictions differ by more than `far`, relative to their largest number."""
    return any(unlike(x, other[name], far) for name, x in one.items())


def unlike(a: torch.Tensor, b: torch.Tensor, far: float) -> bool:
    """Whether two tensors differ by more than `far`, relative to their largest number, or in a NaN or infinity."""
    both = a.isfinite() & b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    off = (a - b).abs() > far * torch.maximum(a[both].abs(), b[both].abs()).amax() if bool(both.any()) else both
    return bool(torch.where(both, off, ~same).any())
