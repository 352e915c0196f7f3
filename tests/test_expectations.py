"""Recorded deviations: what they excuse, and that they police themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CORE_CASE

from attnspec.conformance.expectations import Expectation, Expectations, read_expectations
from attnspec.conformance.outcome import CaseResult
from attnspec.spec.errors import InputError

WHY = {"reason": "a known fault", "versions": "1.0", "link": "https://example.org/1"}
OF_CASE = Expectation(outcome="fail", case=CORE_CASE, **WHY)
OF_RULE = Expectation(outcome="fail", rule="mask.bool", **WHY)
Make = Callable[..., CaseResult]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[Any], Path]:
    """Write a file of expectations: a list of entries, or any text."""

    def write(content: Any) -> Path:
        path = tmp_path / "expected.json"
        data = {"format": 1, "backend": "mine", "entries": content}
        path.write_text(content if isinstance(content, str) else json.dumps(data), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("entry", "before", "after"),
    [
        (OF_CASE, {"outcome": "fail", "rule": "mask.bool"}, "xfail"),
        (OF_CASE, {"outcome": "fail", "rule": "grouped.head-map"}, "xfail"),
        (OF_CASE, {"outcome": "crashed"}, "crashed"),
        (OF_CASE, {"outcome": "pass"}, "xpass"),
        (OF_CASE, {"outcome": "not_supported"}, "not_supported"),
        (OF_CASE, {"outcome": "fail", "case": "another/q=1/k=1/d=1"}, "fail"),
        (OF_CASE, {"outcome": "pass", "case": "another/q=1/k=1/d=1"}, "pass"),
        (OF_RULE, {"outcome": "fail", "rule": "mask.bool"}, "xfail"),
        (OF_RULE, {"outcome": "fail", "rule": "mask.additive", "rules": ("mask.bool",)}, "fail"),
        (OF_RULE, {"outcome": "timeout", "rule": "mask.bool"}, "timeout"),
        (OF_RULE, {"outcome": "pass", "rules": ("mask.bool",)}, "pass"),
    ],
)
def test_an_entry_turns_one_outcome_into_another(
    result: Make, entry: Expectation, before: dict[str, Any], after: str
) -> None:
    assert Expectations((entry,)).applied(result(**before)).outcome == after


def test_a_recorded_crash_is_expected(result: Make) -> None:
    entry = Expectation(outcome="crashed", case=CORE_CASE, **WHY)
    assert Expectations((entry,)).applied(result("crashed")).outcome == "xfail"


def test_a_recorded_failure_says_why(result: Make) -> None:
    reason = Expectations((OF_CASE,)).applied(result("fail")).reason
    assert reason == "recorded: a known fault (1.0; https://example.org/1)"


def test_an_unexpected_pass_says_where_its_entry_is(result: Make) -> None:
    message = Expectations((OF_CASE,), "expected.json").applied(result()).message
    assert message == f"{CORE_CASE} passes now: take its entry out of expected.json"


@pytest.mark.parametrize(
    ("results", "unmet"),
    [
        ([], []),
        ([{"outcome": "pass", "rules": ("grouped.head-map",)}], []),
        ([{"outcome": "pass", "rules": ("mask.bool",)}], ["mask.bool"]),
        ([{"outcome": "not_supported", "rules": ("mask.bool",)}], []),
        ([{"outcome": "pass", "rules": ("mask.bool",)}, {"outcome": "xfail", "rule": "mask.bool"}], []),
        ([{"outcome": "pass", "rules": ("mask.bool",)}, {"outcome": "xfail", "rule": "mask.additive"}], ["mask.bool"]),
    ],
)
def test_a_recorded_rule_that_nothing_breaks_any_more_is_unmet(
    result: Make, results: list[dict[str, Any]], unmet: list[str]
) -> None:
    assert Expectations((OF_RULE,)).unmet_rules([result(**fields) for fields in results]) == unmet


def test_a_file_is_read(file: Callable[[Any], Path]) -> None:
    path = file([{"outcome": "fail", "case": CORE_CASE, **WHY}, {"outcome": "fail", "rule": "mask.bool", **WHY}])
    assert read_expectations(path) == Expectations((OF_CASE, OF_RULE), str(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("NaN", "is not JSON"),
        ("[]", "schema 'expectations'"),
        ([{"outcome": "fail", "case": CORE_CASE}], "schema 'expectations'"),
        ([{"outcome": "pass", "case": CORE_CASE, **WHY}], "schema 'expectations'"),
        ([{"outcome": "fail", **WHY}], "schema 'expectations'"),
        ([{"outcome": "fail", "case": CORE_CASE, "rule": "mask.bool", **WHY}], "schema 'expectations'"),
        ([{"outcome": "fail", "case": "no_such_check/q=1/k=1/d=1", **WHY}], "unknown case"),
        ([{"outcome": "fail", "case": "inputs_stay_unchanged/q=1", **WHY}], "lacks k=, d="),
        ([{"outcome": "fail", "rule": "mask.nonsense", **WHY}], "unknown rule 'mask.nonsense'"),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(file: Callable[[Any], Path], content: Any, said: str) -> None:
    path = file(content)
    with pytest.raises(InputError) as caught:
        read_expectations(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_expectations(tmp_path / name)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        read_expectations(path)
