"""From the results of a run to its verdict: conformant, not conformant, or not judged."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from attnspec.conformance.outcome import BROKEN, OUTCOMES, CaseResult
from attnspec.spec import SPEC_VERSION
from attnspec.spec.profiles import PROFILES

EXIT = {"conformant": 0, "not_conformant": 1, "not_judged": 2}


@dataclass(frozen=True)
class Verdict:
    """What a run says of a kernel. verdict: `conformant`, `not_conformant` or `not_judged`. statement: a sentence.
    counts: of outcomes. declared_share: share of the cases within the declared surface that ran, 0 to 1. exit_code: 0,
    1 or 2."""

    verdict: str
    statement: str
    counts: dict[str, int]
    declared_share: float
    exit_code: int


def verdict_of(
    results: list[CaseResult],
    unmet: tuple[str, ...] = (),
    complete: bool = True,
    whole: bool = True,
    asked: tuple[str, ...] = (),
) -> Verdict:
    """Return the verdict on a run. Only `pass` counts as passed.

    unmet: recorded rules that nothing broke (see `expectations`). complete: every selected case ended. whole: the cases
    were not chosen further than by profile. asked: the profiles that were asked for; none is all. Rule:
    `profile.claims`.
    """
    counted = Counter(result.outcome for result in results)
    counts = {outcome: counted[outcome] for outcome in OUTCOMES}
    surface = [r for r in results if r.outcome != "not_supported" or r.declared]
    ran = sum(r.outcome != "not_supported" for r in surface)
    share = ran / len(surface) if surface else 0.0
    name, statement, code = _judge(results, counts, unmet, complete, whole, asked)
    return Verdict(name, statement, counts, share, code)


def _judge(
    results: list[CaseResult],
    counts: dict[str, int],
    unmet: tuple[str, ...],
    complete: bool,
    whole: bool,
    asked: tuple[str, ...],
) -> tuple[str, str, int]:
    broken = {r.rule for r in results if r.outcome in BROKEN and r.rule}
    news = counts["fail"] + counts["crashed"] + counts["timeout"]
    if news:
        rules = f": breaks {', '.join(sorted(broken))}" if broken else ""
        return "not_conformant", f"not conformant{rules}", 1
    if counts["xpass"] or unmet:
        passing = ", ".join([r.id for r in results if r.outcome == "xpass"] + [f"rule {name}" for name in unmet])
        return "not_conformant", f"not conformant as recorded: {passing} passes, against its expectation", 1
    if counts["errored"]:
        return "not_judged", f"not judged: the suite itself failed in {counts['errored']} cases", 2
    if not complete:
        return "not_judged", "not judged: the run did not end", 2
    if counts["xfail"]:
        s = "s" if counts["xfail"] > 1 else ""
        return "not_conformant", f"not conformant: {counts['xfail']} recorded deviation{s}", 0
    if not counts["pass"]:
        return "not_judged", "not judged: the kernel supports none of the chosen cases", 2
    if not whole:
        return "conformant", f"{chosen(counts['pass'])} (spec {SPEC_VERSION})", 0
    full, in_part = profiles_shown(results, asked)
    whole_ones = [f"in {', '.join(full)}"] if full else []
    others = [f"in part, with refusals: {', '.join(in_part)}"] if in_part else []
    return "conformant", f"conformant to spec {SPEC_VERSION} {'; '.join(whole_ones + others)}".rstrip(), 0


def chosen(count: int) -> str:
    """Say that the cases that were chosen one by one pass."""
    return "the chosen case passes" if count == 1 else f"the {count} chosen cases that the kernel supports pass"


def profiles_shown(results: list[CaseResult], asked: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    """Return the names of the profiles of which every claimed case passed, and of those of which only some did, since
    the kernel refused others. asked: the profiles whose cases all ran; none is all."""
    full: list[str] = []
    in_part: list[str] = []
    for name in asked or PROFILES:
        outcomes = {r.outcome for r in results if name in r.profiles and r.declared}
        if "pass" in outcomes:
            (in_part if "not_supported" in outcomes else full).append(name)
    return full, in_part
