"""Holding a target to the vectors of a form: each case run, compared within its budget, and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from attnspec.conformance.comparison import Comparison, compare
from attnspec.conformance.forms import (
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
from attnspec.conformance.forms.refusals import Refusal, refused
from attnspec.conformance.forms.target import Target, Tensors
from attnspec.conformance.outcome import NotSupported, Violation
from attnspec.golden.forms import FORM_CASES
from attnspec.golden.forms.form import lse_dtype
from attnspec.golden.store import FormGolden, load_form, load_forms
from attnspec.spec.dtypes import format_of
from attnspec.spec.errors import InputError, did_you_mean


class Form(NamedTuple):
    """How a form is run and judged. run: calls a target; budgets: of what it returns, by name and accuracy class; axes:
    of each tensor; rule: of a result that is beyond its budget, gradient_rule: of a gradient that is; empty_rule: of a
    result that is so in rows that see nothing alone; wrong_rule: names a rule that says more of a result that is no
    gradient, from its name and where it is wrong, or None; laws: holds a target to what needs no vector, case by case,
    from what it returned and the budgets; refusals: calls that must be refused."""

    run: Callable[[Target, FormGolden], Tensors]
    budgets: Callable[[FormGolden, str], Tensors]
    axes: dict[str, tuple[str, ...]]
    rule: str
    empty_rule: str = "mask.fully-masked-row"
    wrong_rule: Callable[[str, torch.Tensor, FormGolden], str | None] = lambda name, wrong, golden: None
    laws: Callable[[Target, FormGolden, Tensors, Tensors], None] = lambda target, golden, found, budgets: None
    refusals: tuple[Refusal, ...] = ()
    gradient_rule: str = ""


FORMS = {
    "dropout": Form(dropout.run, dropout.budgets, dropout.AXES, dropout.RULE, gradient_rule=dropout.GRADIENT),
    "merge": Form(merge.run, merge.budgets, merge.AXES, merge.RULE, "flash.merge-empty"),
    "multi_head": Form(multi_head.run, multi_head.budgets, multi_head.AXES, multi_head.RULE, "multi-head.empty-row"),
    "additive": Form(additive.run, additive.budgets, additive.AXES, additive.RULE, "additive.mask"),
    "packed": Form(
        packed.run, packed.budgets, packed.AXES, packed.RULE, "packed.zero-length", laws=packed.laws,
        refusals=packed.REFUSALS, gradient_rule=packed.GRADIENT,
    ),
    "paged": Form(
        paged.run, paged.budgets, paged.AXES, paged.RULE, "paged.length-range", laws=paged.laws,
        refusals=paged.REFUSALS, gradient_rule=paged.GRADIENT,
    ),
    "rope": Form(
        rope.run, rope.budgets, rope.AXES, rope.RULE, wrong_rule=rope.wrong_rule, refusals=rope.REFUSALS,
        gradient_rule=rope.GRADIENT,
    ),
    "quantised": Form(
        quantised.run, quantised.budgets, quantised.AXES, quantised.RULE, "key-lengths.zero", laws=quantised.laws,
        refusals=quantised.REFUSALS, gradient_rule=quantised.GRADIENT,
    ),
    "quantise": Form(quantise.run, quantise.budgets, quantise.AXES, quantise.RULE, refusals=quantise.REFUSALS),
    "latent": Form(
        latent.run, latent.budgets, latent.AXES, latent.RULE, laws=latent.laws, refusals=latent.REFUSALS,
        gradient_rule=latent.GRADIENT,
    ),
    "alibi_slopes": Form(alibi_slopes.run, alibi_slopes.budgets, alibi_slopes.AXES, alibi_slopes.RULE),
    "alibi_bias": Form(
        alibi_bias.run, alibi_bias.budgets, alibi_bias.AXES, alibi_bias.RULE, refusals=alibi_bias.REFUSALS
    ),
    "relative_bucket": Form(
        relative_bucket.run, relative_bucket.budgets, relative_bucket.AXES, relative_bucket.RULE,
        refusals=relative_bucket.REFUSALS,
    ),
    "relative_bias": Form(
        relative_bias.run, relative_bias.budgets, relative_bias.AXES, relative_bias.RULE,
        refusals=relative_bias.REFUSALS, gradient_rule=relative_bias.GRADIENT,
    ),
    "document_mask": Form(document_mask.run, document_mask.budgets, document_mask.AXES, document_mask.RULE),
    "prefix_lm": Form(prefix_lm.run, prefix_lm.budgets, prefix_lm.AXES, prefix_lm.RULE, refusals=prefix_lm.REFUSALS),
    "context_parallel": Form(
        context_parallel.run, context_parallel.budgets, context_parallel.AXES, context_parallel.RULE,
        laws=context_parallel.laws, refusals=context_parallel.REFUSALS, gradient_rule=context_parallel.GRADIENT,
    ),
}  # fmt: skip

REFUSALS = {refusal.name: (name, refusal) for name, form in FORMS.items() for refusal in form.refusals}


@dataclass(frozen=True)
class Held:
    """What came of one case. outcome: `pass`, `fail` or `not_supported`. rules: ids that the case enforces; rule: the
    one that is broken. error_over_budget: of the worst element; what: a line; details: more lines, with labels."""

    case: str
    outcome: str
    rules: tuple[str, ...]
    rule: str | None = None
    error_over_budget: float | None = None
    what: str = ""
    details: tuple[tuple[str, str], ...] = ()


def hold(target: Target, form: str, accuracy: str = "fused", names: tuple[str, ...] = ()) -> Iterator[Held]:
    """Run a target on the vectors of a form and yield what came of each case.

    target: as the module of the form in `attnspec.conformance.forms` says. form: one of `FORMS`. accuracy: the class it
    is held to, `fused` or `eager`. names: cases and refusals; none is all of the form. Raises InputError for an unknown
    form, class or case.
    """
    if form not in FORMS:
        raise InputError(f"unknown form {form!r}: use one of {', '.join(FORMS)}{did_you_mean(form, FORMS)}")
    if accuracy not in ("fused", "eager"):
        raise InputError(f"accuracy is {accuracy!r}: use fused or eager")
    check_names(form, names)
    refusals = {refusal.name: refusal for refusal in FORMS[form].refusals}
    goldens = [load_form(name) for name in names if name not in refusals] if names else load_forms(form)
    for golden in goldens:
        yield hold_case(target, golden, accuracy)
    yield from (hold_refusal(target, refusal, form) for name, refusal in refusals.items() if not names or name in names)


def check_names(form: str, names: tuple[str, ...]) -> None:
    """Raise InputError for a name that is neither a case of the form nor a call that it must refuse."""
    known = {case.name: case.form for case in FORM_CASES} | {name: of for name, (of, _) in REFUSALS.items()}
    for name in names:
        if name not in known:
            meant = did_you_mean(name, (case for case, of in known.items() if of == form))
            raise InputError(f"unknown case {name!r}: see `attnspec golden list --form {form}`{meant}")
        if known[name] != form:
            raise InputError(f"case {name!r} has form {known[name]}: leave it out")


def hold_case(target: Target, golden: FormGolden, accuracy: str = "fused") -> Held:
    """Run a target on one case and return what came of it."""
    case = golden.case
    form = FORMS[case.form]
    try:
        found = form.run(target, golden)
        budgets = form.budgets(golden, accuracy)
        worst = judged(found, golden, budgets)
        form.laws(target, golden, found, budgets)
    except NotSupported as reason:
        return Held(case.name, "not_supported", case.rules, what=reason.reason)
    except Violation as found:
        details = found.details
        return Held(case.name, "fail", case.rules, found.rule, found.error_over_budget, found.what, details)
    return Held(case.name, "pass", case.rules, error_over_budget=worst)


def hold_refusal(target: Target, refusal: Refusal, form: str) -> Held:
    """Hold a target to one call of a form that must be refused and return what came of it."""
    try:
        refused(target, refusal, FORMS[form].run)
    except NotSupported as reason:
        return Held(refusal.name, "not_supported", (refusal.rule,), what=reason.reason)
    except Violation as found:
        return Held(refusal.name, "fail", (refusal.rule,), found.rule, what=found.what)
    return Held(refusal.name, "pass", (refusal.rule,))


def judged(got: Tensors, golden: FormGolden, budgets: Tensors) -> float:
    """Return the worst error over budget of what a target returned. Raises Violation where an element is beyond its
    budget, and for another dtype, shape or device than that of the inputs."""
    form, leading = FORMS[golden.case.form], golden.case.problem.leading
    worst = 0.0
    dtype = golden.inputs[leading].dtype if leading else torch.float64
    for name, tensor in got.items():
        right = dtype
        if name == "lse":
            right = getattr(torch, lse_dtype(str(dtype).removeprefix("torch.")))
        truth = golden.truth[name]
        found = (tensor.dtype, tuple(tensor.shape), tensor.device.type)
        if found != (right, tuple(truth.shape), "cpu"):
            said = f"{found[0]} {found[1]} on {found[2]}"
            raise Violation(form.rule, f"{name} is {said}, should be {right} {tuple(truth.shape)} on cpu")
        comparison = compare(tensor, truth, budgets[name], format_of(right))
        if not comparison.holds:
            raise _violation(name, comparison, golden, form)
        worst = max(worst, comparison.error_over_budget)
    return worst


def _violation(name: str, found: Comparison, golden: FormGolden, form: Form) -> Violation:
    more = form.gradient_rule if name.startswith("grad_") else form.wrong_rule(name, found.wrong, golden)
    rule = more or form.rule
    if rule == form.rule and not bool((found.wrong & ~_empty(name, golden)).any()):
        rule = form.empty_rule if form.empty_rule in golden.case.rules else "mask.fully-masked-row"
    return Violation(rule, f"{name} {found.what}", found.details(name, _axes(name, golden)), found.error_over_budget)


def _axes(name: str, golden: FormGolden) -> tuple[str, ...]:
    """Return what the dimensions of a result are called; those of packed queries are tokens and heads."""
    axes = FORMS[golden.case.form].axes[name]
    return axes if len(axes) == golden.truth[name].ndim else packed.AXES[name]


def _empty(name: str, golden: FormGolden) -> torch.Tensor:
    """Return where a result belongs to a row that sees nothing, a shape that broadcasts to the result's."""
    if "lse" in golden.truth:
        empty, axes = golden.truth["lse"] == -torch.inf, _axes("lse", golden)
        order = [axes.index(axis) for axis in _axes(name, golden) if axis in axes]
        return empty if name == "lse" else empty.permute(order)[..., None]
    mask = golden.inputs.get("mask")
    if mask is None:
        return torch.zeros((), dtype=torch.bool)
    hidden = (mask == 0).all(-1).all(1)  # (batch, q_len or 1): rows that no head can see through
    return hidden[..., None]


def statement(results: list[Held]) -> tuple[str, int]:
    """Return the verdict in a sentence and its exit code: 0, 1 where a case fails, 2 where none could be run."""
    failed = [held for held in results if held.outcome == "fail"]
    refused = sum(held.outcome == "not_supported" for held in results)
    passed = len(results) - len(failed) - refused
    beside = f"; {refused} not supported" if refused else ""
    if failed:
        rules = ", ".join(sorted({held.rule for held in failed if held.rule}))
        return f"not conformant: {len(failed)} of {len(results)} cases fail, against {rules}{beside}", 1
    if not passed:
        return "not judged: the target supports none of the cases", 2
    return f"{passed} of {len(results)} cases pass{beside}", 0


def to_json(held: Held) -> dict[str, Any]:
    """Return a result as JSON data."""
    error = held.error_over_budget
    return {
        "case": held.case,
        "outcome": held.outcome,
        "rules": list(held.rules),
        "rule": held.rule,
        "error_over_budget": error if error is None or error != float("inf") else None,
        "what": held.what,
    }
