"""What the script for a GPU does where there is none: one line, and the parts of it that need no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnspec.implementations.cuda_flash import gpu_check
from attnspec.implementations.cuda_flash.gpu_check import Row, difference, inputs, layouts, ran, run_emulated, table


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attnspec.implementations.cuda_flash.gpu_check", str(tmp_path / "table.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "gpu_check: torch sees no CUDA GPU here, and nothing was run\n"
    assert list(tmp_path.iterdir()) == []


def test_the_layout_of_the_emulated_mma_is_that_of_ptx() -> None:
    assert [row.holds for row in layouts(run_emulated)] == [True, True]


def test_another_layout_is_told() -> None:
    def swapped(dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
        run_emulated(dtype, a.roll(8, 0), b, d)

    first = next(iter(layouts(swapped)))
    assert not first.holds
    assert first.found.endswith("of 128 elements differ")


def test_the_emulator_agrees_with_itself() -> None:
    given = inputs(gpu_check.SHAPES[3], torch.float32, "cpu")
    ones, others = gpu_check.attend(given), gpu_check.attend(given)
    assert max(difference(a, b) for a, b in zip(ones, others, strict=True)) == 0


def test_differences_are_of_the_largest_value() -> None:
    inf = float("inf")
    assert difference(torch.tensor([4.0, -inf]), torch.tensor([3.0, -inf])) == pytest.approx(1 / 3)
    assert difference(torch.tensor([4.0, 0.0]), torch.tensor([4.0, -inf])) == inf
    assert difference(torch.zeros(3), torch.zeros(3)) == 0


def test_a_program_that_fails_is_a_row_that_does_not_hold() -> None:
    assert ran("x", [sys.executable, "-c", "print('a'); print('b'); raise SystemExit(1)"]) == Row("x", "b", False)
    assert ran("x", [sys.executable, "-c", "print('a')"]) == Row("x", "a", True)


def test_the_table_marks_what_does_not_hold() -> None:
    lines = table("a GPU", [Row("one", "a|b", True), Row("two", "c", False)]).splitlines()
    assert lines[-2:] == ["| one | a/b | yes |", "| two | c | **no** |"]


def test_without_compute_sanitizer_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert [row.holds for row in gpu_check.sanitized()] == [False] * 3
