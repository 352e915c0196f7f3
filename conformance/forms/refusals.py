"""Calls that a target must refuse: a sound call of a form with one thing changed must end in an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from attnspec.conformance.forms.target import Target, Tensors
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.forms.form import Refusal
from attnspec.golden.store import FormGolden, load_form

Run = Callable[[Target, FormGolden], Tensors]


def changed(refusal: Refusal) -> FormGolden:
    """Return the call that must be refused, as a case."""
    golden = load_form(refusal.case)
    problem = replace(golden.case.problem, **refusal.words)  # type: ignore[type-var]
    inputs = refusal.inputs({name: tensor.clone() for name, tensor in golden.inputs.items()})
    return FormGolden(replace(golden.case, problem=problem), inputs | golden.truth)


def refuse(target: Target, refusal: Refusal, run: Run) -> None:
    """Make the sound call, then the one that must be refused, and return where the target raises an exception.

    Raises Violation of the refusal's rule where the target returns, NotSupported where the sound call is not answered:
    what refuses everything shows nothing.
    """
    try:
        run(target, load_form(refusal.case))
    except (NotSupported, Violation) as reason:
        raise NotSupported(f"the sound call, {refusal.case}, is not answered: {reason}", declared=False) from reason
    raised: list[Exception] = []

    @wraps(target)
    def watched(*arguments: Any, **options: Any) -> Any:
        try:
            return target(*arguments, **options)
        except Exception as error:
            raised.append(error)
            raise

    try:
        run(watched, changed(refusal))
    except NotSupported:
        if not raised:
            raise
    except Violation:
        pass
    if not raised:
        raise Violation(refusal.rule, f"a call that must be refused was answered: {refusal.note}")
