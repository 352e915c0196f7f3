"""The forms of golden cases beside a bare attention call: dropout with a given mask, merging, the multi-head module,
additive attention, packed sequences, paged keys and values, rotary position embedding, quantised keys and values,
quantising."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from attnspec.golden.forms import additive, dropout, merge, multi_head, packed, paged, quantise, quantised, rope
from attnspec.golden.forms.form import FormCase, FormProblem
from attnspec.spec.errors import InputError

FORMS: dict[str, type[FormProblem]] = {
    "dropout": dropout.DropoutProblem,
    "merge": merge.MergeProblem,
    "multi_head": multi_head.MultiHeadProblem,
    "additive": additive.AdditiveProblem,
    "packed": packed.PackedProblem,
    "paged": paged.PagedProblem,
    "rope": rope.RopeProblem,
    "quantised": quantised.QuantisedProblem,
    "quantise": quantise.QuantiseProblem,
}


def problem_of(form: str, text: str) -> FormProblem:
    """Return the problem of a form that a string describes. Raises InputError for an unknown form or another way of
    writing the problem."""
    if form not in FORMS:
        raise InputError(f"unknown form {form!r}: use one of {', '.join(FORMS)}")
    problem = FORMS[form].parse(text)
    if str(problem) != text:
        raise InputError(f"problem {text!r} is not written as {str(problem)!r}")
    return problem


def _read() -> Iterator[FormCase]:
    for kind in FORMS.values():
        groups: dict[str, dict[str, str]] = import_module(kind.__module__).GROUPS
        for note, problems in groups.items():
            for name, text in problems.items():
                problem = kind.parse(text)
                yield FormCase(name, problem, tuple(sorted(set(problem.rules()))), note)


FORM_CASES = tuple(_read())


def form_case(name: str) -> FormCase:
    """Return the case of another form than attention called `name`. Raises InputError for a name that no table has."""
    for case in FORM_CASES:
        if case.name == name:
            return case
    raise InputError(f"unknown case {name!r}: see `attnspec golden list`")
