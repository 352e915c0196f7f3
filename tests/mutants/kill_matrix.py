"""Run the suite on every mutant and every honest kernel, and print what it finds as Markdown.

    python tests/mutants/kill_matrix.py [--thorough] [--seeds N] [--jobs N] [--only NAME] [--out FILE.md] [--update]

A mutant's run ends at its first kill by a check for its rule; `--thorough` runs every check on every mutant, and prints
what each check kills. Exits with 1 where a mutant is not killed by a check for its rule, or an honest kernel is
accused, what stands in `not_yet.py` apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import torch

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that `mutants` is the package, here as under pytest

from attnspec.conformance.catalogue import CHECKS
from mutants import FAMILIES, mutant_named, not_yet
from mutants.house import honest_name, honest_targets
from mutants.matrix import FATES, KILLED, Fate, fate_of, fate_of_honest
from mutants.not_yet import ACCUSED, NOT_YET
from mutants.truth import forget_other

STRIKE = "strike out"
Job = tuple[str, str, int, bool]  # family, mutant or honest target, shift of the seeds, whether thorough


def jobs_of(seeds: int, only: str | None, thorough: bool) -> list[Job]:
    """Return what is to run: every mutant and honest kernel, or those whose name contains `only`."""
    targets = [("honest", target) for target in honest_targets()]
    targets += [(family, mutant.name) for family, table in FAMILIES.items() for mutant in table]
    shown = {name: honest_name(name) if family == "honest" else name for family, name in targets}
    chosen = [(family, name) for family, name in targets if only is None or only in shown[name]]
    return [(family, name, shift, thorough) for shift in range(seeds) for family, name in chosen]


def run(job: Job) -> Fate:
    """Run one job in this process."""
    torch.set_num_threads(1)
    family, name, shift, thorough = job
    forget_other(shift)
    if family == "honest":
        return fate_of_honest(name, shift)
    return fate_of(mutant_named(name), family, shift=shift, thorough=thorough)


def table(header: str, rows: list[list[object]]) -> Iterator[str]:
    """Yield a Markdown table."""
    titles = header.split("|")
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def report(fates: list[Fate], seconds: float, seeds: int, thorough: bool) -> Iterator[str]:
    """Yield the lines of the report: by family, mutants not killed by their rule, honest kernels, checks."""
    mutants = [fate for fate in fates if fate.family != "honest"]
    yield f"# Kill matrix\n\n{len(mutants)} runs of mutants, {len(fates) - len(mutants)} of honest kernels,"
    yield f"{seeds} seeds, {seconds:.0f} s.\n\nnamed: a case fails with the mutant's rule, or the diagnosis names a"
    yield "mistake that breaks it; cited: the rule is among those that a failing case enforces; other: not even that.\n"
    counts = {family: Counter(f.how for f in mutants if f.family == family) for family in FAMILIES}
    counts["all"] = sum(counts.values(), Counter())
    yield from table(
        "family|mutants|named|cited|other|survived",
        [[family, n.total(), *(n[how] for how in FATES)] for family, n in counts.items() if n],
    )
    for how in ("survived", "other", "cited") if thorough else ("survived", "other"):
        rows = [[f.name, f.rule, f.instead, f.by] for f in mutants if f.how == how]
        if rows:
            yield f"\n## {how}: {len(rows)}\n"
            yield from table("mutant|should be named|named instead|first case", rows)
    accused = [[f.name, f.instead, f.by] for f in fates if f.family == "honest" and f.rules]
    yield f"\n## Honest kernels accused: {len(accused)}\n"
    if accused:
        yield from table("kernel|of|first case", accused)
    if differences := changed(fates):
        yield f"\n## `not_yet.py` is out of date: {len(differences)}\n"
        yield from table("kernel|what to do", [[name, what] for name, what in sorted(differences.items())])
    kills = defaultdict(set)
    for fate in mutants:
        for check in fate.checks:
            kills[check].add(fate.name)
    if seeds > 1:
        return
    if not thorough:
        yield "\n## Killed\n"
        killed = [[f.name, f.rule, f.by] for f in mutants if f.how in KILLED]
        yield from table("mutant|rule|first case for it that fails", killed)
        return
    yield "\n## Checks\n"
    alone = {fate.name: fate.checks for fate in mutants}
    yield from table(
        "check|kills|of these alone",
        [[c.name, len(kills[c.name]), sum(alone[name] == (c.name,) for name in kills[c.name])] for c in CHECKS],
    )
    yield "\n## Killed\n"
    yield from table(
        "mutant|rule|first case that names it|all checks that kill it",
        [[f.name, f.rule, f.by, ", ".join(f.checks)] for f in mutants if f.how == "named"],
    )
    yield "\n## Slowest\n"
    slow = sorted(fates, key=lambda fate: -fate.seconds)[:10]
    yield from table("kernel|seconds", [[f.name, f"{f.seconds:.1f}"] for f in slow])


def changed(fates: list[Fate]) -> dict[str, str]:
    """Return what `not_yet.py` does not say: kernels that fail without being listed, or are listed and do not fail."""
    failing = {
        f.name: f.instead or "survived" for f in fates if (f.rules if f.family == "honest" else f.how not in KILLED)
    }
    known = {f.name for f in fates if f.name in {**NOT_YET, **ACCUSED}}
    fails = {name: f"add: {failing[name]}" for name in failing if name not in known}
    return fails | dict.fromkeys(known - set(failing), STRIKE)


def update(differences: dict[str, str], honest: set[str]) -> None:
    """Write `not_yet.py` anew: strike out what has become untrue, add what was found, keep the other reasons."""
    reasons = {name: why for name, why in (NOT_YET | ACCUSED).items() if name not in differences}
    reasons |= {name: what[5:] for name, what in differences.items() if what != STRIKE}
    lines = [Path(not_yet.__file__).read_text(encoding="utf-8").partition("NOT_YET")[0].rstrip(), ""]
    for title, chosen in (("NOT_YET", reasons.keys() - honest), ("ACCUSED", reasons.keys() & honest)):
        entries = [
            f"    {json.dumps(name)}: {json.dumps(reasons[name], ensure_ascii=False)},\n" for name in sorted(chosen)
        ]
        lines.append(f"{title}: dict[str, str] = {{\n{''.join(entries)}}}")
    Path(not_yet.__file__).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Run, report, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--thorough", action="store_true", help="run every check on every mutant")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run each generated case with")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--only", help="run only what contains this in its name")
    parser.add_argument("--out", type=Path, help="write the report here, else to standard output")
    parser.add_argument("--update", action="store_true", help="bring not_yet.py up to date with what has been run")
    asked = parser.parse_args()
    began = perf_counter()
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        fates = list(pool.map(run, jobs_of(asked.seeds, asked.only, asked.thorough)))
    text = "\n".join(report(fates, perf_counter() - began, asked.seeds, asked.thorough)) + "\n"
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    if asked.update:
        update(changed(fates), {fate.name for fate in fates if fate.family == "honest"})
    return 1 if changed(fates) else 0


if __name__ == "__main__":
    sys.exit(main())
