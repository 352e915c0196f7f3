"""Print on how many mutants the diagnosis names the planted mistake first, as Markdown.

    python tests/mutants/diagnosis_figure.py [--jobs N] [--all]

`--all` also shows the names given to mutants whose mistake is not in the catalogue.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that `mutants` is the package, here as under pytest

from attnspec.conformance.diagnosis.diagnose import diagnose
from mutants import all_mutants, mutant_named
from mutants.house import kernel_of
from mutants.matrix import finding, in_order, quick_cases
from mutants.truth import remembered

TRIED = 5  # failing cases of a mutant, until one has a diagnosis


def named(name: str) -> tuple[str, ...]:
    """Return the names that the diagnosis gives to a mutant's first failing cases; none where it gives none."""
    torch.set_num_threads(1)
    mutant = mutant_named(name)
    kernel = kernel_of(mutant)
    failing = 0
    with remembered():
        for case in in_order(quick_cases(), mutant.rule):
            found = finding(kernel, case)
            if found is None:
                continue
            failing += 1
            diagnosis = diagnose(kernel, found.case or case)
            if diagnosis is not None:
                return diagnosis.names
            if failing == TRIED:
                break
    return ()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--all", action="store_true", help="also mutants whose mistake is not in the catalogue")
    asked = parser.parse_args()
    mutants = [mutant for mutant in all_mutants() if mutant.mistake or asked.all]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        given = dict(zip(mutants, pool.map(named, [mutant.name for mutant in mutants]), strict=True))
    how = Counter(
        "first" if names[:1] == (m.mistake,) else "later" if m.mistake in names else "none" if not names else "wrong"
        for m, names in given.items()
        if m.mistake
    )
    print(f"{how.total()} mutants whose mistake is in the catalogue: the right name stands first for {how['first']}")
    print(f"({how['first'] / how.total():.0%}), later for {how['later']}, there is no name for {how['none']},")
    print(f"and a wrong one for {how['wrong']}.\n")
    print("| mutant | mistake | named |\n|---|---|---|")
    for mutant, names in given.items():
        if names or mutant.mistake:
            print(f"| {mutant.name} | {mutant.mistake or ''} | {', '.join(names)} |")


if __name__ == "__main__":
    main()
