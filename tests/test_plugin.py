"""The suite as a pytest plugin: `pytest --pyargs attnspec.conformance --attn-backend TARGET`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import CORE_CASE, Process, run, target_of

Pytest = Callable[..., Process]
GROUPED = "query_heads_read_their_group"
CASES = 16  # of that check, of which the kernel with tiled heads breaks some and passes some


@pytest.fixture
def suite(tmp_path: Path) -> Pytest:
    """Run the suite with pytest, in an empty folder."""
    command = [sys.executable, "-m", "pytest", "--pyargs", "attnspec.conformance", "-o", f"cache_dir={tmp_path}/cache"]
    return lambda *arguments: run([*command, *arguments], tmp_path)


def counts(process: Process) -> dict[str, int]:
    """What pytest's last line counts."""
    line = process.stdout.splitlines()[-1]
    return {name.rstrip("s"): int(number) for number, name in re.findall(r"(\d+) ([a-z]+)", line)}


def test_a_part_of_the_suite_runs_in_parallel_and_its_failures_run_again(suite: Pytest, tmp_path: Path) -> None:
    backend = f"--attn-backend={target_of('tiled_heads')}"
    first = suite(backend, "-k", GROUPED, "-n2", "--junitxml=junit.xml")
    assert first.returncode == 1
    assert f"FAIL {GROUPED}/" in first.stdout
    assert "rule       grouped.head-map (MUST, chapter grouped-heads)" in first.stdout
    assert "Traceback" not in first.stdout

    junit = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    failed = int(junit.attrib["failures"])
    assert int(junit.attrib["tests"]) == CASES
    assert 0 < failed < CASES
    assert f"FAIL {GROUPED}/" in junit.findtext(".//failure", "")

    again = suite(backend, "--lf")
    assert counts(again)["failed"] == failed
    assert "passed" not in counts(again)


def test_one_case_runs_by_its_name(suite: Pytest) -> None:
    process = suite(f"--attn-backend={target_of('honest')}", f"--attn-case={CORE_CASE}")
    assert process.returncode == 0
    assert counts(process) == {"passed": 1}


def test_what_is_not_supported_is_skipped_and_says_why(suite: Pytest) -> None:
    process = suite("--attn-backend=torch_sdpa.math", "--attn-case=lse_matches_golden/plain-square-float32", "-rs")
    assert counts(process) == {"skipped": 1}
    assert "not_supported: return_lse" in process.stdout


def test_a_missing_backend_is_a_usage_error(suite: Pytest) -> None:
    process = suite()
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --attn-backend is missing: name the kernel to validate" in process.stderr + process.stdout
    assert "Traceback" not in process.stderr + process.stdout


@pytest.mark.parametrize("option", ["--attn-case=nonsense", "--attn-shard=1", "--attn-rule=mask.nonsense"])
def test_a_wrong_option_is_a_usage_error(suite: Pytest, option: str) -> None:
    process = suite(f"--attn-backend={target_of('honest')}", option)
    assert process.returncode == pytest.ExitCode.USAGE_ERROR
    assert option.partition("=")[2] in process.stderr + process.stdout


def test_a_target_that_cannot_be_used_stops_the_run(suite: Pytest) -> None:
    process = suite("--attn-backend=missing:attention", "-k", GROUPED)
    assert process.returncode != 0
    assert "target module 'missing' does not exist" in process.stdout
    assert counts(process)["error"] == 1


def test_other_tests_of_the_user_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine():\n    pass\n")
    process = run([sys.executable, "-m", "pytest", "-pno:cacheprovider"], tmp_path)
    assert counts(process) == {"passed": 1}


def test_the_plugin_imports_nothing_slow() -> None:
    script = "import sys, attnspec.conformance.plugin; print({'torch', 'hypothesis', 'numpy'} & set(sys.modules))"
    assert run([sys.executable, "-c", script], Path("/")).stdout == "set()\n"


def test_the_plugin_offers_its_options_in_the_help(tmp_path: Path) -> None:
    assert "--attn-backend=TARGET" in run([sys.executable, "-m", "pytest", "--help"], tmp_path).stdout
