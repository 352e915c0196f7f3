"""The command `show`: what a rule or a case is, in facts; and the rules with their checks, for `list rules`."""

from __future__ import annotations

from typing import Any

from attnspec.conformance.catalogue import BY_NAME, EVERY_CASE, case_named, cases
from attnspec.conformance.forms.hold import REFUSALS
from attnspec.golden.forms import FORM_CASES, form_case
from attnspec.spec.errors import InputError, did_you_mean
from attnspec.spec.rules import all_rules


def facts_of(name: str) -> dict[str, Any]:
    """Return the facts of a rule's id or of a case, by label. Raises InputError for a name that is neither."""
    if name in all_rules():
        return _rule(name)
    if "/" not in name:
        if name in {case.name for case in FORM_CASES}:
            return _form_case(name)
        if name in REFUSALS:
            return _refusal(name)
        meant = did_you_mean(name, (*all_rules(), *(case.name for case in FORM_CASES), *REFUSALS))
        raise InputError(f"{name!r} is no rule and no case: see `attnspec list rules` and `attnspec list cases`{meant}")
    return _case(name)


def rules_with_checks() -> list[dict[str, Any]]:
    """Return every rule with the checks that enforce it, in reading order."""
    enforcing: dict[str, dict[str, None]] = {rule_id: {"every check": None} for rule_id in EVERY_CASE}
    for case in cases("full"):
        for rule_id in case.rules:
            if rule_id not in EVERY_CASE:
                enforcing.setdefault(rule_id, {})[case.check] = None
    for stored in FORM_CASES:
        for rule_id in stored.rules:
            if rule_id not in EVERY_CASE:
                enforcing.setdefault(rule_id, {})[form_check(stored.form)] = None
    for form, refusal in REFUSALS.values():
        enforcing.setdefault(refusal.rule, {})[form_check(form)] = None
    return [
        {"id": rule.id, "strength": rule.strength, "chapter": rule.chapter, "checks": list(enforcing.get(rule.id, {}))}
        for rule in all_rules().values()
    ]


def _rule(rule_id: str) -> dict[str, Any]:
    rule = all_rules()[rule_id]
    enforcing = [case.check for case in cases("full") if rule_id in case.rules]
    enforcing += [form_check(case.form) for case in FORM_CASES if rule_id in case.rules]
    enforcing += [form_check(form) for form, refusal in REFUSALS.values() if rule_id == refusal.rule]
    return {
        "rule": rule.id,
        "strength": rule.strength,
        "chapter": rule.chapter,
        "text": rule.text,
        "checks": ["every check"] if rule_id in EVERY_CASE else list(dict.fromkeys(enforcing)),
        **({"not checked": rule.unchecked} if rule.unchecked else {}),
        "cases": len(cases("full")) if rule_id in EVERY_CASE else len(enforcing),
    }


def _case(case_id: str) -> dict[str, Any]:
    case = case_named(case_id)
    said = [f"{name}={value}" for name, value in case.problem.to_json().items() if value is not None]
    return {
        "case": case.id,
        "family": case.family,
        "proves": BY_NAME[case.check].sentence,
        "problem": said,
        "lse": "asked for" if case.return_lse else "not asked for",
        "rules": list(case.rules),
        "profiles": list(case.profiles),
        "rerun": f"attnspec validate TARGET --case '{case.id}'",
    }


def form_check(form: str) -> str:
    """Return what enforces the rules of a form's cases: `attnspec golden hold`."""
    return f"golden hold --form {form}"


def _form_case(name: str) -> dict[str, Any]:
    case = form_case(name)
    return {
        "case": case.name,
        "form": case.form,
        "shows": case.note,
        "problem": str(case.problem),
        "rules": list(case.rules),
        "rerun": f"attnspec golden hold TARGET --form {case.form} --case {case.name}",
    }


def _refusal(name: str) -> dict[str, Any]:
    form, refusal = REFUSALS[name]
    return {
        "case": name,
        "form": form,
        "shows": f"A call that must be refused: {refusal.what}.",
        "problem": f"that of {refusal.case}, with one thing made wrong",
        "rules": [refusal.rule],
        "rerun": f"attnspec golden hold TARGET --form {form} --case {name}",
    }
