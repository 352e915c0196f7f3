"""What is known of one kernel: what it made of the problems of the battery, and the diagnoses so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from attnspec.conformance.diagnosis.backward.evidence import BackwardEvidence
from attnspec.conformance.diagnosis.backward.mistake import RIGHT_BACKWARD
from attnspec.conformance.diagnosis.backward.mistakes import BACKWARD
from attnspec.conformance.diagnosis.battery import battery, with_gradients
from attnspec.conformance.diagnosis.diagnosis import Diagnosis
from attnspec.conformance.diagnosis.evidence import Evidence, ForwardEvidence, usable
from attnspec.conformance.diagnosis.fit import fit
from attnspec.conformance.diagnosis.mistake import RIGHT, Mistake
from attnspec.conformance.diagnosis.mistakes import CATALOGUE
from attnspec.conformance.diagnosis.recorder import Answer
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.inputs import make_call
from attnspec.spec.call import Call
from attnspec.spec.problem import Problem


@dataclass
class Session:
    """What is known of one kernel's results. outcomes: by problem, None where it refused. found: diagnoses so far.
    lost: seconds spent on failures that the catalogue does not hold."""

    kernel: Kernel
    lost: float = 0.0
    outcomes: dict[Problem, Evidence | None] = field(default_factory=dict)
    found: list[Diagnosis] = field(default_factory=list)
    catalogue: ClassVar[tuple[Mistake, ...]] = CATALOGUE
    right: ClassVar[Mistake] = RIGHT
    kind: ClassVar[type[Evidence]] = ForwardEvidence

    def evidence(self, call: Call, answer: Answer, problem: Problem) -> Evidence:
        """Return a call and the kernel's answer as evidence; problem: says where a right triangle is aligned."""
        return self.kind(call, answer, self.corner(problem), self.kernel.capabilities.accuracy)

    def corner(self, problem: Problem) -> str:
        """Return the corner of a problem's causal triangle or window: the kernel's own where it has neither."""
        return problem.corner if problem.causal or problem.window else self.kernel.capabilities.causal_alignment

    def call(self, problem: Problem) -> Call:
        """Return the call of a problem, with the lse where the kernel has it."""
        return self.kernel.asking_for_lse(make_call(problem), problem)

    def answer(self, call: Call) -> Answer:
        """Return what the kernel makes of a call."""
        return self.kernel(call)

    def battery(self, case: Problem) -> Iterator[Problem]:
        """Return the problems that tell mistakes apart, those like the case's first."""
        return battery(case, self.kernel.capabilities)

    def outcome(self, problem: Problem) -> Evidence | None:
        """Return what the kernel makes of a problem, run at most once; None where it refuses."""
        if problem not in self.outcomes:
            self.outcomes[problem] = self._run(problem)
        return self.outcomes[problem]

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
            return self.evidence(call, self.answer(call), problem) if usable(call) else None
        except (NotSupported, Violation):
            return None


class BackwardSession(Session):
    """What is known of one kernel's gradients."""

    catalogue = BACKWARD
    right = RIGHT_BACKWARD
    kind = BackwardEvidence

    def call(self, problem: Problem) -> Call:
        """Return the call of a problem, with the lse where gradients flow back through it."""
        return make_call(problem).but(return_lse=problem.grad == "lse")

    def answer(self, call: Call) -> Answer:
        """Return the gradients that the kernel gives of a call."""
        return self.kernel.gradients(call)[1]

    def battery(self, case: Problem) -> Iterator[Problem]:
        """Return problems with gradients, as of `Session`."""
        return with_gradients(case, self.kernel.capabilities)
