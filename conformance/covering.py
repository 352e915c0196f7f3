"""Options crossed pairwise: a covering array, in which every two values of different options meet in at least one row.

A row is fitted to a kernel before it runs: an option that the kernel does not support falls back, and the rest of the
row still crosses. What ran is what counts: `coverage` is the share of the possible pairs that met.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from typing import NamedTuple

from attnspec.conformance.case import Case
from attnspec.spec.alibi import Alibi
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.problem import Mask, Problem
from attnspec.spec.window import Window

Row = dict[str, str]

OPTIONS: dict[str, dict[str, dict[str, object]]] = {  # option: value: fields of the problem. The first is the fallback.
    "dtype": {name: {"dtype": name} for name in ("float32", "bfloat16", "float16", "float64")},
    "lengths": {
        f"{q}x{k}": {"q_len": q, "k_len": k} for q, k in ((33, 70), (1, 66), (70, 33), (64, 64), (17, 130), (5, 1))
    },
    "heads": {f"{q}/{kv}": {"q_heads": q, "kv_heads": kv} for q, kv in ((2, 2), (6, 2), (4, 1), (1, 1))},
    "batch": {
        "2": {"batch": 2, "kv_batch": 2},
        "1": {"batch": 1, "kv_batch": 1},
        "shared": {"batch": 3, "kv_batch": 1},
    },
    "dims": {f"{d}/{v}": {"head_dim": d, "value_dim": v} for d, v in ((64, 64), (24, 40), (65, 65), (128, 32), (3, 3))},
    "mask": {
        text: {"mask": None if text == "none" else Mask.parse(text)}
        for text in (
            "none",
            "bool.b11k.padding",
            "bool.bhqk.empty_rows",
            "bool.qk.leading",
            "bool.hqk.random",
            "float.bhqk.random",
            "float.1h1k.bias",
            "float.qk.low",
        )
    },
    "causal": {"none": {"causal": None}, "causal": {"causal": "upper_left"}},
    "scale": {str(scale): {"scale": scale} for scale in (None, -0.7, 0.0, 3.0)},
    "scores": {str(scores): {"scores": scores} for scores in (1.0, 8.0, 0.125)},
    "values": {kind: {"values": kind} for kind in ("normal", "uniform", "spiky", "sign_sorted")},
}
NONE = "none"
MODIFIERS: dict[str, dict[str, dict[str, object]]] = {  # options of few kernels, in rows that have at least one
    "window": {
        ".".join(map(str, bounds)) or NONE: {"window": Window(*bounds) if bounds else None}
        for bounds in ((), (3, 0), (0, 5), (16, -1))
    },
    "softcap": {str(cap or NONE): {"softcap": cap} for cap in (None, 1.5, 30.0)},
    "alibi": {name: {"alibi": Alibi() if name != NONE else None} for name in (NONE, "alibi")},
    "sinks": {kind or NONE: {"sinks": kind} for kind in (None, "normal")},
}
FITTED = ("options_combine", "options_combine_in_the_backward")  # checks whose problems fall back
EVERY = OPTIONS | MODIFIERS
Pair = tuple[tuple[str, str], tuple[str, str]]


@cache
def array() -> tuple[Problem, ...]:
    """Return the rows of the covering array, as problems; the same ones everywhere."""
    return tuple(problem_of(row).but(seed=number) for number, row in enumerate(_rows(OPTIONS, all_pairs(OPTIONS))))


@cache
def modified() -> tuple[Problem, ...]:
    """Return the rows in which the options of few kernels cross the others, as problems; the same ones everywhere."""
    return tuple(problem_of(row).but(seed=number) for number, row in enumerate(_rows(EVERY, pairs_of_modifiers())))


def _rows(options: dict[str, dict[str, dict[str, object]]], pairs: Iterator[Pair]) -> Iterator[Row]:
    """Yield rows, greedily: each begins with a pair that is still missing and takes, option by option, the value that
    meets the most missing pairs."""
    missing = set(pairs)
    while missing:
        row: Row = dict(min(missing))
        for option in sorted(options.keys() - row.keys(), key=lambda name: (-len(options[name]), name)):
            row[option] = max(options[option], key=lambda value: _met(row, option, value, missing))
        missing -= set(pairs_of(row))
        yield row


def _met(row: Row, option: str, value: str, missing: set[Pair]) -> int:
    return sum(_pair((option, value), other) in missing for other in row.items())


def all_pairs(options: dict[str, dict[str, dict[str, object]]]) -> Iterator[Pair]:
    """Yield every pair of values of two options."""
    for a, b in combinations(sorted(options), 2):
        yield from (_pair((a, x), (b, y)) for x, y in product(options[a], options[b]))


def pairs_of_modifiers() -> Iterator[Pair]:
    """Yield every pair in which an option of few kernels is set."""
    return (pair for pair in all_pairs(EVERY) if any(is_modifier(*choice) for choice in pair))


def is_modifier(option: str, value: str) -> bool:
    """Whether this value of an option is that of few kernels."""
    return option in MODIFIERS and value != NONE


def pairs_of(row: Row) -> Iterator[Pair]:
    """Yield the pairs that meet in a row."""
    return (_pair(a, b) for a, b in combinations(row.items(), 2))


def _pair(a: tuple[str, str], b: tuple[str, str]) -> Pair:
    return (a, b) if a < b else (b, a)


def problem_of(row: Row) -> Problem:
    """Return the problem that a row describes."""
    fields: dict[str, object] = {}
    for option, value in row.items():
        fields |= EVERY[option][value]
    return Problem(**fields)  # type: ignore[arg-type]


def row_of(problem: Problem) -> Row:
    """Return the values of a problem by option; options that have a value of none of them are left out."""
    row = {}
    for option, values in EVERY.items():
        for value, fields in values.items():
            shown = {name: getattr(problem, name) for name in fields}
            if shown.get("causal"):
                shown["causal"] = "upper_left"  # either corner is the option's one value
            if isinstance(shown.get("window"), Window):
                shown["window"] = problem.window and problem.window._replace(corner=None)
            if isinstance(shown.get("alibi"), Alibi):
                shown["alibi"] = Alibi()  # either form at either corner is the option's one value
            if shown == fields:
                row[option] = value
                break
    return row


def fallbacks(problem: Problem) -> Iterator[Problem]:
    """Yield the problem, then with one option after another fallen back, then with two, so that something of it runs.
    A problem with options of few kernels keeps one of them."""
    yield problem
    row = row_of(problem)
    modified = any(is_modifier(*choice) for choice in row.items())
    changes = []
    for option in (*MODIFIERS, "dims", "batch", "heads", "mask", "causal", "scale", "dtype"):
        first = next(iter(EVERY[option]))
        if row.get(option) != first:
            changes.append(EVERY[option][first])
    for count in (1, 2, 3):
        for chosen in combinations(changes, count):
            fields: dict[str, object] = {}
            for change in chosen:
                fields |= change
            fallen = problem.but(**fields)
            if not modified or any(is_modifier(*choice) for choice in row_of(fallen).items()):
                yield fallen


def lacks(case: Case, capabilities: Capabilities) -> str | None:
    """Return why no problem of a case lies within the capabilities, in words; None where one may.

    A case that draws its problems, or falls back to others, may have one as long as these capabilities hold an option
    of few kernels that it keeps.
    """
    lacking = capabilities.lacks(case.problem, case.return_lse)
    if lacking is None or case.draw is not None:
        return None
    if case.check not in FITTED:
        return lacking
    bare = case.problem.but(**dict.fromkeys(MODIFIERS))  # an option of few kernels has its field's name
    kept = case.problem.features() - bare.features()
    return lacking if kept and not kept.intersection(capabilities.features) else None


class Pairs(NamedTuple):
    """Pairs of values of two options: how many met, and how many are possible."""

    pairs_met: int
    pairs_possible: int


def coverage(ran: list[Problem], capabilities: Capabilities) -> Pairs:
    """Return how many pairs met in what ran, and how many are possible within the capabilities."""
    met = {pair for problem in ran for pair in pairs_of(row_of(problem))}
    possible = {pair for pair in all_pairs(EVERY) if _possible(pair, capabilities)}
    return Pairs(len(met & possible), len(possible))


def _possible(pair: Pair, capabilities: Capabilities) -> bool:
    """Whether the kernel supports the two values together, everything else at its first value."""
    first = {option: next(iter(values)) for option, values in EVERY.items()}
    return capabilities.lacks(capabilities.fitted(problem_of(first | dict(pair)))) is None
