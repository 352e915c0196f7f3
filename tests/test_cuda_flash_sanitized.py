"""The kernels of cuda_flash are silent under ThreadSanitizer and the address sanitizer, which find faults in them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from conftest import Process, clean_environment
from cuda.run_flash import CALLS, FAULTS, OF_THREADS

RUNNER = Path(__file__).parent / "cuda" / "run_flash.py"
FAULTS_OF = {"thread": OF_THREADS, "address": tuple(name for name in FAULTS if name not in OF_THREADS)}
KINDS = {
    "one-key-too-many-in-the-tile": "use-after-poison",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What a sanitizer told of the clean calls and of the faults, by the sanitizer's name."""

    @cache
    def run(kind: str) -> dict[str, dict[str, str]]:
        folder = tmp_path_factory.mktemp(kind)
        command = [sys.executable, str(RUNNER), str(folder), kind, *FAULTS_OF[kind]]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


@pytest.mark.parametrize("kind", FAULTS_OF)
def test_the_kernels_are_silent(told, kind: str) -> None:
    assert told(kind)["clean"] == dict.fromkeys(CALLS, "")


@pytest.mark.parametrize("name", OF_THREADS)
def test_a_missing_barrier_is_a_race(told, name: str) -> None:
    line = told("thread")["faults"][name]
    assert "data race" in line
    assert FAULTS[name].file in line or "tiles.cuh" in line


@pytest.mark.parametrize("name", KINDS)
def test_an_overflow_is_found(told, name: str) -> None:
    assert KINDS[name] in told("address")["faults"][name]


def test_the_suite_runs_them_under_a_sanitizer(attnspec: Callable[..., Process], tmp_path: Path) -> None:
    case = "gradients_match_golden/gradients-grouped-float32"
    done = attnspec("validate", "cuda_flash", "--sanitize=address", "--jobs=1", "--case", case, "--report=report.jsonl")
    assert done.returncode == 0, done.stderr
    header, result, _ = (json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines())
    assert header["hardware"] == "CUDA emulated on cpu, address sanitizer"
    assert result["outcome"] == "pass"
