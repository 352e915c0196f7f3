"""From outcomes to a verdict: only pass counts as passed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attnspec.conformance.outcome import OUTCOMES, CaseResult
from attnspec.conformance.verdict import EXIT, Verdict, profiles_shown, verdict_of

Make = Callable[..., CaseResult]


@pytest.fixture
def verdict(result: Make) -> Callable[..., Verdict]:
    """Judge a run that gave these outcomes."""

    def judge(outcomes: str, unmet: tuple[str, ...] = (), complete: bool = True) -> Verdict:
        return verdict_of([result(name) for name in outcomes.split()], unmet, complete)

    return judge


@pytest.mark.parametrize(
    ("outcomes", "name", "code"),
    [
        ("", "not_judged", 2),
        ("pass", "conformant", 0),
        ("pass not_supported", "conformant", 0),
        ("not_supported", "not_judged", 2),
        ("pass fail", "not_conformant", 1),
        ("pass crashed", "not_conformant", 1),
        ("pass timeout", "not_conformant", 1),
        ("pass errored", "not_judged", 2),
        ("fail errored", "not_conformant", 1),
        ("pass xfail", "not_conformant", 0),
        ("xfail", "not_conformant", 0),
        ("pass xpass", "not_conformant", 1),
        ("xfail xpass", "not_conformant", 1),
        ("xfail fail", "not_conformant", 1),
        ("xfail errored", "not_judged", 2),
    ],
)
def test_outcomes_give_a_verdict(verdict: Callable[..., Verdict], outcomes: str, name: str, code: int) -> None:
    judged = verdict(outcomes)
    assert (judged.verdict, judged.exit_code) == (name, code)
    assert (judged.verdict == "conformant") == judged.statement.startswith("conformant")


@pytest.mark.parametrize("outcomes", ["pass", "pass xfail", "not_supported"])
def test_a_run_that_did_not_end_is_not_judged(verdict: Callable[..., Verdict], outcomes: str) -> None:
    assert verdict(outcomes, complete=False).verdict == "not_judged"


def test_a_failure_is_told_even_where_the_run_did_not_end(verdict: Callable[..., Verdict]) -> None:
    assert verdict("pass fail", complete=False).exit_code == 1


def test_a_recorded_rule_that_nothing_breaks_is_told(verdict: Callable[..., Verdict]) -> None:
    judged = verdict("pass", unmet=("mask.bool",))
    assert judged.exit_code == 1
    assert "rule mask.bool passes, against its expectation" in judged.statement


@pytest.mark.parametrize(
    ("outcomes", "said"), [("xfail", "1 recorded deviation"), ("xfail xfail", "2 recorded deviations")]
)
def test_recorded_deviations_are_counted_in_words(verdict: Callable[..., Verdict], outcomes: str, said: str) -> None:
    assert verdict(outcomes).statement == f"not conformant: {said}"


def test_the_broken_rules_are_named_once_and_sorted(result: Make) -> None:
    results = [result("fail", rule=rule) for rule in ("mask.bool", "grouped.head-map", "mask.bool")]
    assert verdict_of(results).statement == "not conformant: breaks grouped.head-map, mask.bool"


def test_every_outcome_is_counted(verdict: Callable[..., Verdict]) -> None:
    counts = verdict("pass pass fail").counts
    assert counts == dict.fromkeys(OUTCOMES, 0) | {"pass": 2, "fail": 1}


@pytest.mark.parametrize(
    ("refused_within_the_claims", "share"), [((), 1.0), ((False,), 1.0), ((True,), 0.5), ((True, True, False), 1 / 3)]
)
def test_the_declared_share_leaves_out_what_is_not_claimed(
    result: Make, refused_within_the_claims: tuple[bool, ...], share: float
) -> None:
    results = [result(), *(result("not_supported", declared=declared) for declared in refused_within_the_claims)]
    assert verdict_of(results).declared_share == pytest.approx(share)


def test_only_profiles_with_a_passing_case_are_claimed(result: Make) -> None:
    results = [result(profiles=("lse", "core")), result("not_supported", profiles=("masks",))]
    assert profiles_shown(results) == (["core", "lse"], [])
    assert verdict_of(results).statement == "conformant to spec 0.1 in core, lse"


def test_a_profile_with_refusals_is_claimed_in_part(result: Make) -> None:
    results = [result(profiles=("core",)), result(profiles=("half",)), result("not_supported", profiles=("half",))]
    assert verdict_of(results).statement == "conformant to spec 0.1 in core; in part, with refusals: half"


def test_refusals_in_every_profile_are_told_once(result: Make) -> None:
    results = [result(profiles=("half",)), result("not_supported", profiles=("half",))]
    assert verdict_of(results).statement == "conformant to spec 0.1 in part, with refusals: half"


def test_a_part_of_the_cases_earns_no_profile(result: Make) -> None:
    assert verdict_of([result()], whole=False).statement == "the chosen case passes (spec 0.1)"


def test_every_verdict_has_an_exit_code() -> None:
    assert EXIT == {"conformant": 0, "not_conformant": 1, "not_judged": 2}
