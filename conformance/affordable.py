"""Which cases a kernel is not asked to run: what it does not declare, and, of a kernel that is emulated, large calls.

An interpreter or an emulator takes thousands of times as long for a tile as the hardware. It is covered by the same
checks and rules, by many small calls rather than by few large ones.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil

from attnspec.conformance.case import Case
from attnspec.conformance.catalogue import cases
from attnspec.conformance.covering import lacks
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.problem import Problem

TILE = 64  # rows and keys of the tiles that work is counted in
BACKWARD = 4  # passes over the tiles in a forward and backward call, where a forward call has one
MOST_WORK = {"quick": 16, "full": 48}  # tiles of one call of an emulated kernel, by level
CHEAPEST = 2  # cases of a check that an emulated kernel runs whatever they cost


def left_out(chosen: tuple[Case, ...], capabilities: Capabilities, level: str, named: bool = False) -> dict[str, str]:
    """Return why cases are not run, by their ids; cases that run are not among them.

    chosen: the cases. named: the user asked for each of them by its id, so that none is too large. What is too large
    does not depend on the choice: of each check at least the cheapest that the kernel declares are left.
    """
    undeclared = {case.id: reason for case in chosen if (reason := lacks(case, capabilities))}
    if capabilities.cost == "native" or named:
        return undeclared
    kept = cheapest(level, capabilities)
    most = MOST_WORK[level]
    why = f"a call of more than {most} tiles, which level {level} does not ask of an emulated kernel"
    large = {case.id for case in chosen if case.draw is None and work(case.problem) > most} - kept
    return dict.fromkeys(large, why) | undeclared


def work(problem: Problem) -> int:
    """Return how many tiles of scores a kernel computes in a call, from the problem's sizes alone."""
    tiles = problem.batch * problem.q_heads * ceil(problem.q_len / TILE) * ceil(problem.k_len / TILE)
    return tiles * (BACKWARD if problem.grad else 1)


def cheapest(level: str, capabilities: Capabilities) -> set[str]:
    """Return the ids of the cheapest cases of each check that the kernel declares, the first of the level's where
    several cost the same."""
    by_check: dict[str, list[Case]] = defaultdict(list)
    for case in cases(level):
        if case.draw is None and lacks(case, capabilities) is None:
            by_check[case.check].append(case)
    found = (sorted(of_check, key=lambda case: work(case.problem))[:CHEAPEST] for of_check in by_check.values())
    return {case.id for of_check in found for case in of_check}
