"""Kernels with one planted fault each, a table a family, and the command that runs the suite on them: kill_matrix."""

from __future__ import annotations

from mutants import (
    alibi,
    causal,
    dispatch,
    dropout,
    forms,
    gradients,
    heads,
    lengths,
    lse,
    masks,
    memory,
    precision,
    results,
    scale,
    sinks,
    softcap,
    softmax,
    tiles,
    windows,
)
from mutants.house import Mutant

FORWARD = (
    causal,
    masks,
    heads,
    scale,
    softmax,
    lse,
    tiles,
    lengths,
    windows,
    softcap,
    precision,
    memory,
    results,
    dispatch,
)
FAMILIES: dict[str, tuple[Mutant, ...]] = {
    module.__name__.rpartition(".")[2]: module.MUTANTS for module in (*FORWARD, dropout, gradients, alibi, sinks)
}


def all_mutants() -> tuple[Mutant, ...]:
    """Return every mutant, family by family."""
    return tuple(mutant for table in FAMILIES.values() for mutant in table)


def mutant_named(name: str) -> Mutant:
    """Return one mutant, of a kernel or of a form. Raises SystemExit that lists the names."""
    named = {mutant.name: mutant for mutant in (*all_mutants(), *forms.form_mutants())}
    if name not in named:
        raise SystemExit(f"no mutant is called {name!r}; use one of:\n" + "\n".join(named))
    return named[name]
