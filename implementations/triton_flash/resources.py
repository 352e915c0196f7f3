"""What a compiled kernel takes of a GPU, and whether that is more than the GPU has or than it took before.

The table `resources.json` is recorded by `compile_check.py` and shown in `docs/triton-resources.md`. Nothing here needs
Triton.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from attnspec.implementations.gpu_limits import KIB, SHARED_LIMITS

TABLE = Path(__file__).with_name("resources.json")
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True)
class Resources:
    """What one kernel takes: registers of a thread; spills, bytes of them kept in memory; shared, bytes of a block."""

    registers: int
    spills: int
    shared: int


Table = dict[str, dict[str, Resources]]  # target: "kernel, call": what it takes


@dataclass(frozen=True)
class Record:
    """A table and the Triton that compiled it."""

    triton: str
    table: Table


def of_ptxas(log: str, shared: int) -> Resources:
    """Return what ptxas says of one kernel in its verbose log. Raises ValueError where it says nothing."""
    spilled, used = SPILLED.search(log), REGISTERS.search(log)
    if spilled is None or used is None:
        raise ValueError(f"ptxas names no registers and spills: {log[:200]!r}")
    return Resources(int(used[1]), max(int(spilled[1]), int(spilled[2])), shared)


def of_amdgcn(assembly: str, shared: int) -> Resources:
    """Return what LLVM notes of one kernel in AMD assembly: vector registers, accumulators included, and spills, each
    of 4 bytes a lane. Raises ValueError where it notes nothing."""
    noted = {name: re.search(rf"\.{name}:\s+(\d+)", assembly) for name in ("vgpr_count", "vgpr_spill_count")}
    if None in noted.values():
        raise ValueError("the assembly has no metadata of registers and spills")
    registers, spills = (int(found[1]) for found in noted.values() if found is not None)
    return Resources(registers, 4 * spills, shared)


def findings(record: Record, recorded: Record, kernels: set[str]) -> Iterator[str]:
    """Yield what is wrong with a table of today, a line each; nothing where all is well.

    kernels: the names that every target must have. Wrong are a kernel that is missing on a target, shared memory over
    the target's limit, more spills than recorded, and a recorded table that names other kernels and calls.
    """
    for target, limit in SHARED_LIMITS.items():
        rows = record.table.get(target, {})
        for kernel in sorted(kernels - {name.split(",")[0] for name in rows}):
            yield f"{target}: kernel {kernel} is compiled by no call; add one to compile_check.calls"
        known = recorded.table.get(target, {})
        for name, takes in rows.items():
            if takes.shared > limit:
                yield f"{target}: {name} takes {takes.shared} bytes of shared memory, of {limit} that a block has"
            if name not in known:
                yield f"{target}: {name} is not recorded; run compile_check --record"
            elif takes.spills > known[name].spills:
                yield f"{target}: {name} spills {takes.spills} bytes, {known[name].spills} when it was recorded"
        for name in known.keys() - rows.keys():
            yield f"{target}: {name} is recorded, and compiled no more; run compile_check --record"


def load(path: Path = TABLE) -> Record:
    """Return the recorded table, an empty one where there is no file."""
    if not path.exists():
        return Record("", {})
    data = json.loads(path.read_text(encoding="utf-8"))
    table = {t: {name: Resources(**takes) for name, takes in rows.items()} for t, rows in data["targets"].items()}
    return Record(data["triton"], table)


def save(record: Record, path: Path = TABLE) -> None:
    """Write a table as JSON."""
    targets = {t: {name: asdict(takes) for name, takes in rows.items()} for t, rows in record.table.items()}
    path.write_text(json.dumps({"triton": record.triton, "targets": targets}, indent=1) + "\n", encoding="utf-8")


def page(record: Record) -> list[str]:
    """Return the table as the lines of `docs/triton-resources.md`."""
    lines = [
        "<!-- Written by `python -m attnspec.implementations.triton_flash.compile_check --page`; do not edit. -->",
        "",
        "# What the Triton kernels take of a GPU",
        "",
        f"Compiled to machine code by Triton {record.triton} without a GPU; none of this was timed. Registers are",
        "those of a thread, spills the bytes of them kept in memory, shared the KiB of a block's shared memory.",
    ]
    for target, rows in record.table.items():
        lines += ["", f"## {target}: {SHARED_LIMITS[target] // KIB} KiB for a block", ""]
        lines += ["| kernel | call | registers | spills | shared |", "|---|---|--:|--:|--:|"]
        for name, takes in rows.items():
            kernel, call = name.split(", ", 1)
            lines.append(f"| `{kernel}` | {call} | {takes.registers} | {takes.spills} | {takes.shared / KIB:.1f} |")
    return lines
