"""What a kernel is asked, and what it answers, while a check runs once more."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import BY_NAME
from attnspec.conformance.kernel import Kernel
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.spec.call import Call, Gradients, Result

Answer = Result | Gradients
Pair = tuple[Call, Answer]
Tensors = TypeVar("Tensors", Result, Gradients)


@dataclass(frozen=True)
class Recorder(Kernel):
    """A kernel that keeps what it is asked and what it answers: calls as they were before, answers as they came."""

    log: list[Pair] = field(default_factory=list, compare=False)

    def returned(self, call: Call) -> Result:
        """As `Kernel.returned`."""
        asked = copied(call)
        result = super().returned(call)
        self.log.append((asked, kept(result)))
        return result

    def gradients(self, call: Call, of: tuple[str, ...] = ()) -> tuple[Result, Gradients]:
        """As `Kernel.gradients`. Gradients of some inputs alone are not kept."""
        asked = copied(call)
        result, back = self.forward(call, of)
        self.log.append((asked, kept(result)))
        gradients = back()
        if not of:
            self.log.append((asked, kept(gradients)))
        return result, gradients


def copied(call: Call) -> Call:
    """Return the call with tensors of its own, on the CPU."""
    tensors = {f.name: getattr(call, f.name) for f in fields(call)}
    return call.but(**{n: x.detach().cpu().clone() for n, x in tensors.items() if isinstance(x, torch.Tensor)})


def kept(answer: Tensors) -> Tensors:
    """Return an answer with tensors of its own, on the CPU."""
    values: list[Any] = [None if x is None else x.detach().cpu().clone() for x in answer]
    return type(answer)(*values)


def replayed(kernel: Kernel, case: Case) -> list[Pair]:
    """Run a case's check once more and return every call that it made, with the kernel's answer."""
    recorder = Recorder(**{f.name: getattr(kernel, f.name) for f in fields(Kernel)})
    with torch.no_grad(), suppress(Violation, NotSupported):
        BY_NAME[case.check].body(recorder, case)
    return recorder.log
