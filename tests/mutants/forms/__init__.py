"""Faults of what is no bare attention kernel, a module a form. Each is its base in `tests/honest/forms` with one
planted fault, and the vectors of the form, of a case that cites the rule, must find it."""

from mutants.forms.additive import ADDITIVE
from mutants.forms.alibi import ALIBI, ALIBI_BIAS, ALIBI_SLOPES
from mutants.forms.document_masks import DOCUMENT_MASK, PREFIX_LM
from mutants.forms.dropout import DROPOUT
from mutants.forms.latent import LATENT
from mutants.forms.merge import MERGE
from mutants.forms.multi_head import MULTI_HEAD
from mutants.forms.relative_bias import RELATIVE_BIAS, RELATIVE_BUCKET
from mutants.house import Mutant

FORM_FAMILIES = {
    "multi_head": MULTI_HEAD,
    "merge": MERGE,
    "additive": ADDITIVE,
    "dropout": DROPOUT,
    "latent": LATENT,
    "alibi_slopes": ALIBI_SLOPES,
    "alibi_bias": ALIBI_BIAS,
    "relative_bucket": RELATIVE_BUCKET,
    "relative_bias": RELATIVE_BIAS,
    "document_mask": DOCUMENT_MASK,
    "prefix_lm": PREFIX_LM,
    "alibi": ALIBI,
}


def form_mutants() -> tuple[Mutant, ...]:
    """Return every mutant of every form."""
    return tuple(mutant for table in FORM_FAMILIES.values() for mutant in table)
