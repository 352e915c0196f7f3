"""The compile check's gates: each fires on a planted fault, and the recorded table is that of every kernel.

What is compiled here is one kernel; `python -m attnspec.implementations.triton_flash.compile_check` compiles all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attnspec.implementations.triton_flash.resources import (
    SHARED_LIMITS,
    Record,
    Resources,
    findings,
    load,
    of_amdgcn,
    of_ptxas,
    page,
    save,
)

PAGE = Path(__file__).parent.parent / "docs" / "triton-resources.md"
TAKES = Resources(registers=128, spills=8, shared=4096)
RECORDED = Record("3.9.0", {target: {"forward, a call": TAKES} for target in SHARED_LIMITS})
PTXAS = """ptxas info    : Compiling entry function 'forward' for 'sm_90a'
ptxas info    : Function properties for forward
    16 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 416 bytes cmem[0]
"""
AMDGCN = "    .vgpr_count:     277\n    .vgpr_spill_count: 3\n"
PLANTED = """
import json, os, sys, tempfile
os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
import attnspec.implementations.triton_flash.compile_check as check
name = "bfloat16, dim 128, causal"
launch = check.launches(check.calls()[name])[0]
takes = check.compiled(launch, check.TARGETS["sm_80"], (128, 128, 4, 5))
print(json.dumps([launch.name, takes.registers, takes.spills, takes.shared, sorted(check.kernels())]))
"""


def changed(**changes: int) -> Record:
    """The recorded table, but for what the kernel takes on sm_90."""
    return Record("3.9.0", RECORDED.table | {"sm_90": {"forward, a call": replace(TAKES, **changes)}})


def wrong(record: Record, recorded: Record = RECORDED, kernels: tuple[str, ...] = ("forward",)) -> list[str]:
    return list(findings(record, recorded, set(kernels)))


def test_what_was_recorded_passes() -> None:
    assert wrong(RECORDED) == []
    assert wrong(changed(registers=255, spills=0)) == []


def test_shared_memory_over_the_limit_fails() -> None:
    assert wrong(changed(shared=227 * 1024)) == []
    assert wrong(changed(shared=227 * 1024 + 1)) == [
        "sm_90: forward, a call takes 232449 bytes of shared memory, of 232448 that a block has"
    ]


def test_more_spills_than_recorded_fail() -> None:
    assert wrong(changed(spills=9)) == ["sm_90: forward, a call spills 9 bytes, 8 when it was recorded"]


def test_a_kernel_that_no_call_launches_fails() -> None:
    found = wrong(RECORDED, kernels=("forward", "merge_parts"))
    assert len(found) == len(SHARED_LIMITS)
    assert found[0].startswith("sm_80: kernel merge_parts is compiled by no call")


def test_a_target_that_is_not_compiled_for_fails() -> None:
    without = Record("3.9.0", {target: rows for target, rows in RECORDED.table.items() if target != "gfx942"})
    assert [line.partition(":")[0] for line in wrong(without)] == ["gfx942", "gfx942"]


def test_a_table_of_other_calls_fails() -> None:
    other = Record("3.9.0", {target: {"forward, another": TAKES} for target in SHARED_LIMITS})
    found = wrong(other)
    assert sum("is not recorded" in line for line in found) == len(SHARED_LIMITS)
    assert sum("compiled no more" in line for line in found) == len(SHARED_LIMITS)


def test_the_log_of_ptxas_is_read() -> None:
    assert of_ptxas(PTXAS, 1024) == Resources(168, 16, 1024)
    with pytest.raises(ValueError, match="names no registers"):
        of_ptxas("ptxas fatal", 0)


def test_the_metadata_of_amd_is_read() -> None:
    assert of_amdgcn(AMDGCN, 1024) == Resources(277, 12, 1024)
    with pytest.raises(ValueError, match="no metadata"):
        of_amdgcn("", 0)


def test_a_table_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    save(RECORDED, tmp_path / "table.json")
    assert load(tmp_path / "table.json") == RECORDED
    assert load(tmp_path / "none.json") == Record("", {})


def test_the_page_shows_the_recorded_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page(load())) + "\n"


def test_a_tile_too_large_spills_and_passes_the_limit_of_shared_memory() -> None:
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PLANTED], capture_output=True, text=True, check=True, timeout=280, env=environment
    )
    name, registers, spills, shared, kernels = json.loads(done.stdout.splitlines()[-1])
    recorded = load()
    row = f"{name}, bfloat16, dim 128, causal"
    rows = recorded.table["sm_80"] | {row: Resources(registers, spills, shared)}
    planted = Record(recorded.triton, recorded.table | {"sm_80": rows})
    assert list(findings(recorded, recorded, set(kernels))) == []
    assert [line.split(" takes ")[0].split(" spills ")[0] for line in findings(planted, recorded, set(kernels))] == [
        f"sm_80: {row}",
        f"sm_80: {row}",
    ]
