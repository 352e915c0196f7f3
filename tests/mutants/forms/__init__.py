"""Faults of what is no bare attention kernel, a module a form. Each is its base in `tests/honest/forms` with one
planted fault, and a vector of the form or a call that must be refused, which cites the rule, must find it."""

from mutants.forms import additive, dropout, merge, multi_head, packed, paged, quantise, quantised, rope
from mutants.house import Mutant

FORM_FAMILIES = {
    "multi_head": multi_head.MUTANTS,
    "merge": merge.MUTANTS,
    "additive": additive.MUTANTS,
    "dropout": dropout.MUTANTS,
    "packed": packed.MUTANTS,
    "paged": paged.MUTANTS,
    "rope": rope.MUTANTS,
    "quantised": quantised.MUTANTS,
    "quantise": quantise.MUTANTS,
}


def form_mutants() -> tuple[Mutant, ...]:
    """Return every mutant of every form."""
    return tuple(mutant for table in FORM_FAMILIES.values() for mutant in table)
