"""Calls that must be refused: that of a stored case, with one thing made wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from attnspec.conformance.forms.target import Target, Tensors, need
from attnspec.conformance.kernel import said
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.store import FormGolden, load_form

Arguments = dict[Any, Any]  # of a call, by position or by name
Run = Callable[[Target, FormGolden], Tensors]


@dataclass(frozen=True)
class Refusal:
    """A call that must be refused. name: a slug, permanent; rule: id of the rule that says so; case: a stored case,
    whose call is sound; what: what is wrong, in words; change: from the sound arguments, returns those that are wrong,
    or new."""

    name: str
    rule: str
    case: str
    what: str
    change: Callable[[Arguments], Arguments]


def instead(changed: Arguments) -> Callable[[Arguments], Arguments]:
    """Return the change that puts arguments in the place of the sound ones, whatever these are."""
    return lambda sound: changed


def refused(target: Target, refusal: Refusal, run: Run) -> None:
    """Hold a target to a refusal: the call must raise an exception, of any kind, where the sound one does not.

    run: makes the sound call. Raises NotSupported where the sound call is refused too or the signature lacks a word,
    Violation where the wrong one gives a result.
    """
    given = sound_call(target, refusal.case, run)
    changed = refusal.change(given)
    need(target, [name for name in changed if isinstance(name, str)])
    wrong = given | changed
    places = sorted(place for place in wrong if isinstance(place, int))
    options = {name: argument for name, argument in wrong.items() if isinstance(name, str)}
    try:
        with torch.no_grad():
            returned = target(*(wrong[place] for place in places), **options)
    except Exception:
        return
    raise Violation(refusal.rule, f"{refusal.what}, and {said(returned)} came back: an exception would be right")


def sound_call(target: Target, case: str, run: Run) -> Arguments:
    """Return what a target is called with for a stored case. Raises NotSupported where it gives no result."""
    calls: list[Arguments] = []

    @wraps(target)
    def recorded(*arguments: Any, **options: Any) -> Any:
        returned = target(*arguments, **options)
        calls.append({**dict(enumerate(arguments)), **options})
        return returned

    try:
        run(recorded, load_form(case))
    except (NotSupported, Violation) as error:
        if not calls:
            reason = error.reason if isinstance(error, NotSupported) else error.what
            raise NotSupported(f"the sound call of {case} gives no result: {reason}", declared=False) from error
    return calls[0]
