"""Faults of what is no bare attention kernel, a module a form. Each is its base in `tests/honest/forms` with one
planted fault, and the vectors of the form, of a case that cites the rule, must find it."""

from mutants.forms.additive import ADDITIVE
from mutants.forms.dropout import DROPOUT
from mutants.forms.latent import LATENT
from mutants.forms.merge import MERGE
from mutants.forms.multi_head import MULTI_HEAD
from mutants.house import Mutant

FORM_FAMILIES = {
    "multi_head": MULTI_HEAD,
    "merge": MERGE,
    "additive": ADDITIVE,
    "dropout": DROPOUT,
    "latent": LATENT,
}


def form_mutants() -> tuple[Mutant, ...]:
    """Return every mutant of every form."""
    return tuple(mutant for table in FORM_FAMILIES.values() for mutant in table)
