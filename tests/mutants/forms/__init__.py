"""Faults of what is no bare attention kernel, a table a form. Each is its base in `tests/honest/forms` with one planted
fault, and the vectors of the form, of a case that cites the rule, or its probes must find it."""

from mutants.forms.additive import ADDITIVE
from mutants.forms.dropout import DROPOUT
from mutants.forms.merge import MERGE
from mutants.forms.multi_head import MULTI_HEAD
from mutants.forms.quantise import QUANTISE
from mutants.forms.quantised import QUANTISED
from mutants.forms.rope import ROPE
from mutants.house import Mutant

FORM_FAMILIES = {
    "multi_head": MULTI_HEAD,
    "merge": MERGE,
    "additive": ADDITIVE,
    "dropout": DROPOUT,
    "rope": ROPE,
    "quantised": QUANTISED,
    "quantise": QUANTISE,
}


def form_mutants() -> tuple[Mutant, ...]:
    """Return every mutant of every form."""
    return tuple(mutant for table in FORM_FAMILIES.values() for mutant in table)
