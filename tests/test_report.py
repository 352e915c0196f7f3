"""The report: written whole or not at all, and read with nothing trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnspec.conformance.outcome import OUTCOMES, CaseResult
from attnspec.conformance.report import LONGEST_LINE, ReportWriter, read_report
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.errors import InputError

HEADER: dict[str, Any] = {
    "kind": "header",
    "format": 1,
    "attnspec": "0.1.0",
    "spec": "0.1",
    "target": "mine.py:attention",
    "backend": "attention",
    "level": "quick",
    "profiles": [],
    "accuracy": "fused",
    "device": "cpu",
    "hardware": "cpu",
    "seed": None,
    "command": ["attnspec", "validate", "mine.py:attention"],
    "environment": {"python": "3.11", "torch": "2.13", "platform": "Linux x86_64"},
    "capabilities": Capabilities().to_json(),
    "started": "2025-01-01T00:00:00Z",
}
Make = Callable[..., CaseResult]


def footer(**counts: int) -> dict[str, Any]:
    """The last line of a run with these outcomes."""
    return {
        "kind": "footer",
        "counts": dict.fromkeys(OUTCOMES, 0) | counts,
        "verdict": "conformant",
        "statement": "conformant to spec 0.1 in core",
        "declared_share": 1.0,
        "finished": "2025-01-01T00:00:01Z",
        "seconds": 1.0,
        "pairs_met": 10,
        "pairs_possible": 12,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the report goes."""
    return tmp_path / "report.jsonl"


@pytest.fixture
def lines(result: Make) -> list[dict[str, Any]]:
    """A report of two passing cases."""
    return [HEADER, result().to_json(), result("not_supported").to_json(), footer(**{"pass": 1, "not_supported": 1})]


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write a report."""
    with ReportWriter(path) as writer:
        for line in lines[:-1]:
            writer.write(line)
        writer.finish(lines[-1])


def broken(path: Path, content: str | bytes) -> str:
    """Read a report of this content; return what is said of it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_report(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def text_of(lines: list[dict[str, Any]]) -> str:
    """A report's text."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_what_is_written_is_read_again(path: Path, lines: list[dict[str, Any]], result: Make) -> None:
    write(path, lines)
    report = read_report(path)
    assert report.header == HEADER
    assert report.results == (result(), result("not_supported"))
    assert report.footer == lines[-1]


@pytest.mark.parametrize("error", [None, 0.0, 0.25, 1e300, float("inf")])
def test_every_error_over_budget_comes_back(result: Make, error: float | None) -> None:
    written = result("fail", error_over_budget=error)
    assert CaseResult.from_json(json.loads(json.dumps(written.to_json(), allow_nan=False))) == written


def test_an_error_that_is_nan_is_written_as_text(result: Make) -> None:
    assert result(error_over_budget=float("nan")).to_json()["error_over_budget"] == "nan"


def test_a_text_that_is_too_long_is_cut(path: Path, result: Make) -> None:
    with ReportWriter(path) as writer:
        writer.write(result("errored", message="x" * 10**6).to_json())
        writer.write(result("not_supported", reason="x" * 10**6).to_json())


def test_nothing_but_the_part_is_there_before_the_end(path: Path, lines: list[dict[str, Any]]) -> None:
    with ReportWriter(path) as writer:
        writer.write(lines[0])
        assert [file.name for file in path.parent.iterdir()] == ["report.jsonl.part"]
        assert json.loads(writer.part.read_text()) == HEADER


def test_lines_can_be_read_while_the_run_goes_on(path: Path, lines: list[dict[str, Any]]) -> None:
    with ReportWriter(path) as writer:
        for line in lines[:-1]:
            writer.write(line)
        assert len(writer.part.read_text().splitlines()) == 3


def test_a_run_that_does_not_end_leaves_nothing(path: Path) -> None:
    with ReportWriter(path) as writer:
        writer.write(HEADER)
    assert list(path.parent.iterdir()) == []


def test_a_run_that_ends_in_an_exception_leaves_the_old_report(path: Path) -> None:
    path.write_text("old")
    with pytest.raises(InputError), ReportWriter(path) as writer:
        writer.write({"kind": "nonsense"})
    assert [file.name for file in path.parent.iterdir()] == ["report.jsonl"]
    assert path.read_text() == "old"


def test_a_finished_report_replaces_the_old_one(path: Path, lines: list[dict[str, Any]]) -> None:
    write(path, lines)
    write(path, lines)
    assert len(path.read_text().splitlines()) == 4


def test_nothing_but_a_report_is_replaced(path: Path, tmp_path: Path) -> None:
    path.write_text("def attention(q, k, v): ...")
    with pytest.raises(InputError, match="is no report"):
        ReportWriter(path)
    assert path.read_text() == "def attention(q, k, v): ..."
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(InputError, match="is no report"):
        ReportWriter(link)


def test_two_runs_do_not_write_one_report(path: Path) -> None:
    with ReportWriter(path), pytest.raises(InputError, match="being written by another run"):
        ReportWriter(path)


@pytest.mark.parametrize("place", [".", "missing/report.jsonl", "file/report.jsonl"])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        ReportWriter(tmp_path / place)


@pytest.mark.parametrize("change", [{"outcome": "ok"}, {"seconds": -1}, {"rule": "Not an id"}, {"extra": 1}])
def test_a_line_that_breaks_the_schema_is_not_written(path: Path, result: Make, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="schema 'report'"), ReportWriter(path) as writer:
        writer.write(result().to_json() | change)


@pytest.mark.parametrize("removed", [slice(0, 1), slice(3, 4), slice(0, 4), slice(1, 4)])
def test_a_report_without_head_or_foot_is_no_report(path: Path, lines: list[dict[str, Any]], removed: slice) -> None:
    del lines[removed]
    assert "is no whole report" in broken(path, text_of(lines))


def test_two_reports_in_one_file_are_no_report(path: Path, lines: list[dict[str, Any]]) -> None:
    assert "is no whole report" in broken(path, text_of(lines * 2))


def test_a_report_that_is_cut_short_is_told_with_its_line(path: Path, lines: list[dict[str, Any]]) -> None:
    assert "report.jsonl, line 4: is not JSON" in broken(path, text_of(lines)[:-20])


def test_a_report_that_counts_wrong_is_told(path: Path, lines: list[dict[str, Any]]) -> None:
    lines[-1] = footer(**{"pass": 2})
    assert "its footer counts" in broken(path, text_of(lines))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no whole report"),
        ("[]\n", "schema 'report'"),
        ('{"kind": "case"}\n', "schema 'report'"),
        ("NaN\n", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("x" * (LONGEST_LINE + 10), "is not JSON"),
        (b"\xff\xfe", "cannot be read"),
    ],
    ids=["empty", "list", "bare", "nan", "deep", "long", "bytes"],
)
def test_any_other_file_is_told_in_one_line(path: Path, content: str | bytes, said: str) -> None:
    assert said in broken(path, content)


def test_a_missing_report_is_told(path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_report(path)
