"""The matrix of rules and backends."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from conftest import Process

from attnspec.conformance.catalogue import EVERY_CASE
from attnspec.conformance.matrix import Cell, markdown, row, table
from attnspec.conformance.outcome import CaseResult

Make = Callable[..., CaseResult]
RULE, OTHER = "mask.bool", "grouped.head-map"


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ("", ""),
        ("pass", "1 ok"),
        ("pass pass", "2 ok"),
        ("not_supported", "n/a"),
        ("pass not_supported", "1 ok"),
        ("pass xfail", "recorded"),
        ("pass fail xfail", "fail"),
        ("pass crashed", "fail"),
        ("pass timeout", "fail"),
        ("pass errored", "errored"),
        ("pass xpass", "xpass"),
        ("xpass", "xpass"),
    ],
)
def test_a_cell_shows_the_worst_outcome(result: Make, outcomes: str, said: str) -> None:
    rule = {"fail": RULE, "xfail": RULE, "crashed": RULE, "timeout": RULE}
    results = [result(name, rules=(RULE,), rule=rule.get(name)) for name in outcomes.split()]
    assert str(row(RULE, results)) == said


def test_a_failure_counts_against_the_rule_that_it_breaks_alone(result: Make) -> None:
    results = [result("fail", rules=(RULE, OTHER), rule=RULE), result(rules=(OTHER,))]
    assert row(RULE, results) == Cell("fail", 0)
    assert row(OTHER, results) == Cell("pass", 1)


def test_a_rule_that_is_broken_where_no_case_names_it_shows_too(result: Make) -> None:
    results = [result("fail", rules=(RULE,), rule="contract.output-shape")]
    assert str(row("contract.output-shape", results)) == "fail"


def test_the_table_holds_the_rules_at_stake_in_reading_order(result: Make) -> None:
    results = {"a": (result(rules=(OTHER, RULE)),), "b": (result("not_supported", rules=(RULE,)),)}
    rows = {rule: {name: str(cell) for name, cell in line.items()} for rule, line in table(results).items()}
    assert {name: rows[name] for name in (RULE, OTHER)} == {
        RULE: {"a": "1 ok", "b": "n/a"},
        OTHER: {"a": "1 ok", "b": ""},
    }
    assert [name for name in rows if name not in EVERY_CASE] == [RULE, OTHER]
    assert rows[EVERY_CASE[0]] == {"a": "1 ok", "b": "n/a"}


def test_markdown_says_the_verdicts_first(result: Make) -> None:
    results = {"a": (result(rules=(RULE,)),), "b": (result("fail", rules=(RULE,), rule=RULE),)}
    text = markdown(table(results), {"a": "conformant to spec 0.1 in core", "b": "not conformant: breaks mask.bool"})
    lines = text.splitlines()
    assert lines[:5] == [
        "- a: conformant to spec 0.1 in core",
        "- b: not conformant: breaks mask.bool",
        "",
        "| rule | a | b |",
        "|---|---|---|",
    ]
    assert "| mask.bool | 1 ok | fail |" in lines


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("torch_eagre", "unknown backend 'torch_eagre': use one of .*; did you mean 'torch_eager'"),
        ("", "unknown backend ''"),
        ("tiled, torch_eager,", "unknown backend ''"),
        ("tiled, torch_eager , tiled", "unknown level 'fast'"),
    ],
)
def test_the_names_of_the_matrix_are_read_one_by_one(attnspec: Callable[..., Process], named: str, said: str) -> None:
    done = attnspec("matrix", "--backends", named, "--level", "fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"attnspec: error: {said}[^\\n]*\\n", done.stderr)
