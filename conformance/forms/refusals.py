"""Calls that must be refused: that of a stored case, with one thing made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from attnspec.conformance.forms.target import Target, Tensors
from attnspec.conformance.kernel import in_one_line, said
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.store import FormGolden, load_form

Arguments = tuple[list[Any], dict[str, Any]]  # positional, and by name
Asking = Callable[[Target, FormGolden], Arguments]  # what a target is called with for a case


@dataclass(frozen=True)
class Refusal:
    """A call that must be refused. name: a slug, permanent; rule: id of the rule that says so; case: a stored case,
    whose call is sound; what: what is wrong, in words; change: from the sound inputs, returns those that are wrong."""

    name: str
    rule: str
    case: str
    what: str
    change: Callable[[Tensors], Tensors]

    def wrong(self) -> FormGolden:
        """Return the stored case with its wrong inputs."""
        golden = load_form(self.case)
        return replace(golden, tensors=golden.tensors | self.change(golden.inputs))


def refused(target: Target, refusal: Refusal, arguments: Asking) -> None:
    """Hold a target to a refusal: the call must raise an exception, of any kind, where the sound one does not.

    Raises NotSupported where the sound call is refused too, Violation where the wrong one gives a result.
    """
    given, options = arguments(target, load_form(refusal.case))
    try:
        target(*given, **options)
    except Exception as error:
        reason = f"the sound call of {refusal.case} gives no result: {in_one_line(error)}"
        raise NotSupported(reason, declared=False) from error
    given, options = arguments(target, refusal.wrong())
    try:
        returned = target(*given, **options)
    except Exception:
        return
    raise Violation(refusal.rule, f"{refusal.what}, and {said(returned)} came back: an exception would be right")
