"""The forms of golden cases beside a bare attention call, a module a form."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from attnspec.golden.forms import (
    additive,
    alibi_bias,
    alibi_slopes,
    context_parallel,
    document_mask,
    dropout,
    latent,
    merge,
    multi_head,
    packed,
    paged,
    prefix_lm,
    quantise,
    quantised,
    relative_bias,
    relative_bucket,
    rope,
)
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
    "latent": latent.LatentProblem,
    "alibi_slopes": alibi_slopes.AlibiSlopesProblem,
    "alibi_bias": alibi_bias.AlibiBiasProblem,
    "relative_bucket": relative_bucket.RelativeBucketProblem,
    "relative_bias": relative_bias.RelativeBiasProblem,
    "document_mask": document_mask.DocumentMaskProblem,
    "prefix_lm": prefix_lm.PrefixLmProblem,
    "context_parallel": context_parallel.ContextParallelProblem,
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
        for note, problems in sys.modules[kind.__module__].GROUPS.items():
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
