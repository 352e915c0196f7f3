"""Every recorded deviation is confirmed by a script of the library alone, and the suite sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnspec.conformance.catalogue import case_named
from attnspec.conformance.expectations import read_expectations
from attnspec.conformance.outcome import Violation
from attnspec.conformance.running import run_case
from attnspec.conformance.targets import resolve
from attnspec.implementations.registry import EXPECTATIONS, backend_names

UPSTREAM = Path(__file__).parent / "upstream"
SCRIPTS = {
    "torch_sdpa.flash": (
        "torch_flash_causal_scale.py",
        "torch_flash_key_and_value_lengths.py",
        "torch_flash_swallows_nan.py",
        "torch_flash_gradient_of_value.py",
    ),
    "torch_sdpa.math": ("torch_math_dropout_range.py",),
}
FILES = sorted(EXPECTATIONS.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_belongs_to_a_backend_and_has_a_script(path: Path) -> None:
    assert path.stem in backend_names()
    for entry in read_expectations(path).entries:
        assert any(f"tests/upstream/{script}" in entry.reason for script in SCRIPTS[path.stem])


@pytest.mark.parametrize("script", [script for scripts in SCRIPTS.values() for script in scripts])
def test_script_of_the_library_alone_shows_the_fault(script: str) -> None:
    assert "attnspec" not in (UPSTREAM / script).read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, UPSTREAM / script], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_recorded_case_fails_today(path: Path) -> None:
    kernel = resolve(path.stem)
    for entry in read_expectations(path).entries:
        assert entry.case is not None
        with pytest.raises(Violation):
            run_case(kernel, case_named(entry.case))
