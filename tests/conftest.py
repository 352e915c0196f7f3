"""What the tests of the conformance room share: the planted kernels, the command line, and results made by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import attnspec.implementations.triton_flash
from attnspec.conformance.outcome import CaseResult

KERNELS = Path(__file__).parent / "kernels"
CONSOLE_SCRIPT = Path(sys.executable).with_name("attnspec")
CORE_CASE = "inputs_stay_unchanged/b=2/hq=3/q=13/k=29/d=32/dtype=float32/seed=1"
WHY = {"reason": "a known fault", "versions": "1.0", "link": "https://example.org/1"}
INTERFERING = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "NO_COLOR")

Process = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def kernel() -> Callable[[str], Any]:
    """Resolve a kernel of `tests/kernels` by its name."""
    from attnspec.conformance.targets import resolve

    return cache(lambda name: resolve(target_of(name)))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run torch on one thread: the problems are too small to share between threads, and other tests run beside."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def target_of(name: str) -> str:
    """The target that names a kernel of `tests/kernels`."""
    return f"{KERNELS / name}.py:attention"


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without what the tests' own pytest run sets."""
    return {name: value for name, value in os.environ.items() if name not in INTERFERING} | extra


def run(command: list[str], cwd: Path, **environment: str) -> Process:
    """Run a program to its end and return its exit code and what it printed."""
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    return subprocess.run(command, cwd=cwd, env=clean_environment(**environment), **settings)


def write_expectations(path: Path, *entries: dict[str, str]) -> Path:
    """Write a file of expectations, each entry with its reason."""
    data = {"format": 1, "backend": "mine", "entries": [{"outcome": "fail", **WHY, **entry} for entry in entries]}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture
def attnspec(tmp_path: Path) -> Callable[..., Process]:
    """Run the command `attnspec` in an empty folder, `tmp_path`."""
    return lambda *arguments, **environment: run([str(CONSOLE_SCRIPT), *arguments], tmp_path, **environment)


@pytest.fixture
def result() -> Callable[..., CaseResult]:
    """Make a result of the plain core case."""

    def make(outcome: str = "pass", case: str = CORE_CASE, **fields: Any) -> CaseResult:
        given = {"rules": ("contract.inputs-unchanged",), "profiles": ("core",)} | fields
        return CaseResult(case, case.partition("/")[0], "contract", outcome=outcome, **given)

    return make


@pytest.fixture
def kernel_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a Python file into `tmp_path` and return its path."""

    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
