"""The generated pages of `docs/` are what the code says today, and every MUST rule has a check and a mutant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutants import failure_screens, traceability
from mutants.traceability import Trace, traces

from attnspec.conformance.catalogue import CHECKS
from attnspec.spec.rules import Rule, all_rules

DOCS = Path(__file__).parent.parent / "docs"
MUST = Rule("x.y", "x", "MUST", "a text")


@pytest.mark.parametrize("trace", traces(), ids=lambda trace: trace.rule.id)
def test_a_rule_that_must_hold_has_a_check_and_a_mutant(trace: Trace) -> None:
    assert trace.gaps == ()


def test_a_gap_is_seen() -> None:
    assert Trace(MUST, (), ("vector",), ()).gaps == ("check", "mutant")
    assert Trace(MUST, ("check",), (), ()).gaps == ("mutant",)


def test_only_a_reason_in_the_spec_excuses_a_gap() -> None:
    excused = {rule.chapter for rule in all_rules().values() if rule.unchecked}
    assert excused == {
        "kv-cache",
        "multi-head",
        "profiles",
        "document-masks",
        "latent",
    }
    assert Trace(Rule("x.y", "x", "MUST", "a text", "a reason"), (), (), ()).gaps == ()


def test_every_check_enforces_a_rule_in_the_trace() -> None:
    traced = {check for trace in traces() for check in trace.checks}
    assert {check.name for check in CHECKS} <= traced


def test_the_trace_is_current() -> None:
    assert (DOCS / "traceability.md").read_text(encoding="utf-8") == "\n".join(traceability.page()) + "\n"


def test_the_failure_screens_are_current() -> None:
    shown = "\n".join(failure_screens.page()).rstrip() + "\n"
    assert (DOCS / "failures.md").read_text(encoding="utf-8") == shown


@pytest.mark.parametrize("script", ["traceability", "failure_screens", "diagnosis_figure"])
def test_help_is_shown_and_is_no_file(script: str, tmp_path: Path) -> None:
    path = Path(__file__).parent / "mutants" / f"{script}.py"
    done = subprocess.run([sys.executable, path, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: {script}.py")
    assert not list(tmp_path.iterdir())
    assert subprocess.run([sys.executable, path, "--no-such"], cwd=tmp_path, capture_output=True).returncode == 2
