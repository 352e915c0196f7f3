"""Measure how long `attnspec validate --fail-fast` takes to the first failure of a mutant, from process start.

python tests/bench/first_failure.py [--every N]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # where `mutants` is

from mutants import all_mutants
from mutants.house import HONEST


def seconds(source: str) -> float:
    """Return the seconds until the command has ended with a failure."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.py").write_text(source, encoding="utf-8")
        program = Path(sys.executable).with_name("attnspec")
        began = time.perf_counter()
        command = [str(program), "validate", "kernel.py:attention", "--fail-fast"]
        done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(HONEST)}, capture_output=True, check=False)
        return time.perf_counter() - began if done.returncode == 1 else float("inf")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=8, help="take every Nth mutant")
    asked = parser.parse_args()
    chosen = [mutant for mutant in all_mutants() if mutant.base != "declared"][:: asked.every]
    times = {mutant.name: seconds(mutant.source()) for mutant in chosen}
    ordered = sorted(times.values())
    print(f"{len(times)} mutants: median {statistics.median(ordered):.1f} s, 90% within", end=" ")
    print(
        f"{ordered[int(0.9 * len(ordered))]:.1f} s, slowest {ordered[-1]:.1f} s ({max(times, key=times.__getitem__)})"
    )


if __name__ == "__main__":
    main()
