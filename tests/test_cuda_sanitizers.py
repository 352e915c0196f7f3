"""The sanitizers and the emulator find each planted fault of a CUDA kernel, at its line, and accuse no clean one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_faults import CLEAN, FAULTS
from cuda_needs import needs_toolkit

from attnspec.implementations.cuda_emulator import build
from attnspec.implementations.cuda_emulator.sanitizers import environment, reports
from attnspec.spec.errors import InputError

pytestmark = needs_toolkit
HERE = Path(__file__).parent
RUNS = 20
FOUND = [(name, kind) for name, fault in FAULTS.items() for kind in fault.by]
told_by: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the faulty kernels are written."""
    return tmp_path_factory.mktemp("kernels")


def told(kind: str, kernels: Path) -> dict[str, Any]:
    """Return what a process that is started for one sanitizer says of all kernels which it must find faulty."""
    if kind not in told_by:
        names = [name for name, fault in FAULTS.items() if kind in fault.by]
        command = [sys.executable, str(HERE / "cuda_run.py"), str(kernels), kind, str(RUNS), *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode == 0, done.stderr[-2000:]
        told_by[kind] = json.loads(done.stdout)
    return told_by[kind]


@pytest.mark.parametrize("kind", ["plain", "thread", "address"])
def test_the_clean_kernel_is_never_accused(kind: str, kernels: Path) -> None:
    assert told(kind, kernels)["clean"] == [""] * RUNS


@pytest.mark.parametrize(("name", "kind"), FOUND, ids=[f"{name} by {kind}" for name, kind in FOUND])
def test_a_fault_is_found_at_its_line(name: str, kind: str, kernels: Path) -> None:
    fault, line = FAULTS[name], told(kind, kernels)["faults"][name]
    assert fault.by[kind] in line
    source = fault.source().splitlines()
    named = [source[int(number) - 1] for number in re.findall(rf"{name}\.cu:(\d+)", line)]
    if fault.line and (kind != "plain" or named):
        assert any(fault.line in text for text in named), f"{line} names {named}"


def test_each_kind_of_fault_is_planted() -> None:
    assert len(FAULTS) >= 12
    assert len({fault.source() for fault in FAULTS.values()}) == len(FAULTS)


def test_reports_are_told_in_a_line_each() -> None:
    log = (
        "==1==ERROR: AddressSanitizer: use-after-poison on address 0x1 at pc 0x2\n    #0 0x2 (/none.so+0x2)\n"
        "/tmp/a.cu:62:27: runtime error: index 32 out of bounds for type 'float [32]'\n"
    )
    assert reports(log) == [
        "access outside of an array of shared memory (use-after-poison) at an unknown place",
        "index 32 out of bounds for type 'float [32]' at /tmp/a.cu:62",
    ]
    assert reports("nothing of note\n") == []


def test_a_process_without_the_runtime_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the runtime of the thread sanitizer is not in this process"):
        build(CLEAN, sanitize="thread")
    with pytest.raises(InputError, match="sanitizer 'memory': use thread or address"):
        build(CLEAN, sanitize="memory")
    with pytest.raises(InputError, match="sanitizer 'memory': use thread or address"):
        environment("memory", tmp_path)
