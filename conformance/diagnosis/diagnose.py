"""From a failing case to the name of the known mistake that reproduces it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.diagnosis.battery import battery
from attnspec.conformance.diagnosis.broken import broken_rule
from attnspec.conformance.diagnosis.evidence import Evidence, replayed, usable
from attnspec.conformance.diagnosis.fit import fit
from attnspec.conformance.diagnosis.mistake import Mistake
from attnspec.conformance.diagnosis.mistakes import CATALOGUE
from attnspec.conformance.diagnosis.steps import NoPrediction, Steps, attend
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call, Result
from attnspec.spec.problem import Problem

Pair = tuple[Call, Result]

NUMERIC = ("golden", "probe", "regime")  # families whose failures are wrong numbers, wherever they show
PIECES = 3  # of wrong evidence, and of right evidence, that a mistake is held against
ENOUGH = 8  # telling elements: fewer are no proof without a second problem
APART = 1e-2  # of the largest number: predictions further apart than this can be told apart by one more call
PATIENCE = 4.0  # seconds of fruitless search, after which only what was found before is tried
CHECKS = 3  # problems that a diagnosis is held against before it is given
FINELY_APART = 1e-4  # the same, where a lack of precision is among the candidates
MOST_NAMES = 3  # that a diagnosis gives; more is no diagnosis
DIALECTS = {  # what a kernel that means a mistake declares instead, by the mistake's name
    "causal-other-corner": "causal_alignment, by --causal-alignment",
    "alibi-other-corner": "alibi_alignment, by --alibi-alignment",
    "alibi-other-form": "alibi_form, in its capabilities",
    "lse-base-2": "lse_base, in its capabilities",
    "scores-in-bfloat16": "accuracy eager, by --accuracy",
    "scores-in-float16": "accuracy eager, by --accuracy",
}


@dataclass(frozen=True)
class Diagnosis:
    """The mistakes that reproduce a failure, best first; forms of one mistake stand next to each other.

    but_not: a problem on which the mistake would show and the kernel is right, in words that `Problem.parse` reads.
    """

    mistakes: tuple[Mistake, ...]
    but_not: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, best first."""
        return tuple(dict.fromkeys(mistake.name for mistake in self.mistakes))

    @property
    def line(self) -> str:
        """The line of the failure screen: `name: sentence`, and further names that fit as well."""
        first, *others = self.names
        forms = [mistake.form for mistake in self.mistakes if mistake.name == first]
        form = f" ({forms[0]})" if len(forms) == 1 and forms[0] else ""
        more = f"; or {', or '.join(others)}" if others else ""
        less = f"; but not in {self.but_not}" if self.but_not else ""
        return f"{first}: {self.mistakes[0].sentence}{form}{more}{less}"

    @property
    def dialect(self) -> str | None:
        """What a kernel that means its first mistake declares instead, None where the spec has no such dialect."""
        return DIALECTS.get(self.names[0])

    def rule(self, problem: Problem) -> str:
        """The id of the rule that the first mistake breaks in a problem."""
        return broken_rule(self.mistakes[0], problem)


def diagnose(kernel: Kernel, case: Case, evidence: Sequence[Pair] | None = None) -> Diagnosis | None:
    """Return which known mistakes reproduce the kernel's failure in a case; None where none does.

    evidence: the calls that failed and the kernel's results; by default the case's check is run once more. Never
    raises: a failure must be reported with or without a diagnosis.
    """
    if case.problem.dropout:  # no mistake of the catalogue knows the draws
        return None
    try:
        with torch.no_grad():
            return _diagnose(session_of(kernel), case, replayed(kernel, case) if evidence is None else evidence)
    except Exception:  # a diagnosis is a courtesy
        return None


@dataclass
class Session:
    """What is known of one kernel. outcomes: by problem, None where it refused. found: diagnoses so far. lost: seconds
    spent on failures that the catalogue does not hold."""

    kernel: Kernel
    lost: float = 0.0
    outcomes: dict[Problem, Evidence | None] = field(default_factory=dict)
    found: list[Diagnosis] = field(default_factory=list)

    def evidence(self, call: Call, result: Result, corner: str | None) -> Evidence:
        """Return a piece of evidence; corner: of the case's diagonal, None where it has none."""
        capabilities = self.kernel.capabilities
        return Evidence(call, result, corner or capabilities.causal_alignment, capabilities.accuracy)

    def call(self, problem: Problem) -> Call:
        """Return the call of a problem, with the lse where the kernel has it."""
        return self.kernel.asking_for_lse(make_call(problem), problem)

    def outcome(self, problem: Problem) -> Evidence | None:
        """Return what the kernel makes of a problem, run at most once; None where it refuses."""
        if problem not in self.outcomes:
            self.outcomes[problem] = self._run(problem)
        return self.outcomes[problem]

    def corner(self, problem: Problem) -> str:
        """Return the corner of the triangle of a problem."""
        return corner_of(problem) or self.kernel.capabilities.causal_alignment

    def filtered(self, candidates: dict[Mistake, int], problem: Problem) -> dict[Mistake, int]:
        """Return the candidates that reproduce what the kernel makes of a problem, with the elements that match."""
        outcome = self.outcome(problem)
        if outcome is None:
            return candidates
        fits = {mistake: fit(mistake, outcome) for mistake in candidates}
        return {mistake: candidates[mistake] + found.matched for mistake, found in fits.items() if found.holds}

    def _run(self, problem: Problem) -> Evidence | None:
        call = self.call(problem)
        try:
            return self.evidence(call, self.kernel(call), corner_of(problem)) if usable(call) else None
        except (NotSupported, Violation):
            return None


def corner_of(problem: Problem) -> str | None:
    """Return the corner of a problem's causal triangle or window, None where it has neither."""
    return problem.corner if problem.causal or problem.window else None


@cache
def session_of(kernel: Kernel) -> Session:
    """Return the one session of a kernel."""
    return Session(kernel)


def _diagnose(session: Session, case: Case, pairs: Sequence[Pair]) -> Diagnosis | None:
    start = time.monotonic()
    seen = [session.evidence(*pair, corner_of(case.problem)) for pair in pairs if usable(pair[0])]
    wrong = sorted((piece for piece in seen if piece.wrong), key=lambda piece: piece.size)
    right = [piece for piece in seen if not piece.wrong]
    if pairs and not wrong and session.lost < PATIENCE and case.family in NUMERIC:
        wrong = elsewhere(session, case.problem)
    if not wrong:
        return None
    pieces = wrong[:PIECES] + right[:PIECES]
    for known in session.found:
        if reproducing(known.mistakes, pieces):
            return known
    if session.lost > PATIENCE:
        return None
    diagnosis = settled(session, case.problem, reproducing(CATALOGUE, pieces))
    if diagnosis is not None:
        session.found.append(diagnosis)
    else:
        session.lost += time.monotonic() - start
    return diagnosis


def elsewhere(session: Session, problem: Problem) -> list[Evidence]:
    """Return the first problem of the battery on which the kernel is wrong."""
    for other in battery(problem, session.kernel.capabilities):
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
    others = list(battery(problem, session.kernel.capabilities))
    alone = len({mistake.name for mistake in candidates}) == 1
    for other in others:
        if not candidates or (len(candidates) == 1 and min(candidates.values()) >= ENOUGH):
            break
        if worth_a_run(candidates, session.call(other), session.corner(other)):
            candidates = session.filtered(candidates, other)
    proven = [mistake for mistake, telling in candidates.items() if telling >= ENOUGH]
    found = Diagnosis(tuple(sorted(proven, key=CATALOGUE.index)))
    if len(found.names) != 1:
        return found if 0 < len(found.names) <= MOST_NAMES else None
    checked = confirmed(session, found, others)
    return None if checked is None or (checked.but_not and not alone) else checked


def confirmed(session: Session, diagnosis: Diagnosis, others: Iterable[Problem]) -> Diagnosis | None:
    """Hold a diagnosis against a few more problems on which it predicts a wrong result.

    Where the kernel is right on one, the mistake is one of some calls alone, and the diagnosis says so. Where it is
    wrong in another way, the name does not say what is wrong: None.
    """
    mistake, checks = diagnosis.mistakes[0], 0
    for other in others:
        if checks == CHECKS or diagnosis.but_not:
            break
        if not worth_a_run({mistake: 0}, session.call(other), session.corner(other)):
            continue
        outcome = session.outcome(other)
        checks += outcome is not None
        if outcome is not None and not fit(mistake, outcome).holds:
            if outcome.wrong:
                return None
            diagnosis = replace(diagnosis, but_not=str(other))
    return diagnosis


def worth_a_run(candidates: dict[Mistake, int], call: Call, corner: str) -> bool:
    """Whether a call tells candidates apart, or one that is not proven yet from the truth."""
    truth = attend(call, corner, Steps()).result
    predictions = {mistake: predicted(mistake, call, corner, truth) for mistake in candidates}
    known = [result for result in predictions.values() if result is not None]
    far = FINELY_APART if any(mistake.rounds for mistake in candidates) else APART
    if any(apart(known[0], other, call.return_lse, far) for other in known[1:]):
        return True
    unproven = [result for mistake, result in predictions.items() if candidates[mistake] < ENOUGH]
    return any(result is not None and apart(truth, result, call.return_lse, far) for result in unproven)


def predicted(mistake: Mistake, call: Call, corner: str, truth: Result) -> Result | None:
    """Return what a kernel that makes the mistake returns, None where the mistake does not say."""
    if not mistake.needs(call):
        return truth
    try:
        return attend(call, corner, mistake.steps).result
    except NoPrediction:
        return None


def apart(one: Result, other: Result, with_lse: bool, far: float) -> bool:
    """Whether two results differ by more than `far`, relative to their largest number."""
    pairs = [(one.output, other.output)]
    if with_lse and one.lse is not None and other.lse is not None:
        pairs.append((one.lse, other.lse))
    return any(unlike(a, b, far) for a, b in pairs)


def unlike(a: torch.Tensor, b: torch.Tensor, far: float) -> bool:
    """Whether two tensors differ by more than `far`, relative to their largest number, or in a NaN or infinity."""
    both = a.isfinite() & b.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    off = (a - b).abs() > far * torch.maximum(a[both].abs(), b[both].abs()).amax() if bool(both.any()) else both
    return bool(torch.where(both, off, ~same).any())
