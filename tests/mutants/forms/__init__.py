"""Faults of what is no bare attention kernel, a module a form. Each is its base in `tests/honest/forms` with one
planted fault, and a vector of the form or a call that must be refused, which cites the rule, must find it."""

from mutants.forms import (
    additive,
    alibi_bias,
    alibi_slopes,
    context_parallel,
    document_mask,
    dropout,
    latent,
    merge,
    multi_head,
    packed,
    paged,
    prefix_lm,
    quantise,
    quantised,
    relative_bias,
    relative_bucket,
    rope,
)
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
    "latent": latent.MUTANTS,
    "alibi_slopes": alibi_slopes.MUTANTS,
    "alibi_bias": alibi_bias.MUTANTS,
    "relative_bucket": relative_bucket.MUTANTS,
    "relative_bias": relative_bias.MUTANTS,
    "document_mask": document_mask.MUTANTS,
    "prefix_lm": prefix_lm.MUTANTS,
    "context_parallel": context_parallel.MUTANTS,
}


def form_mutants() -> tuple[Mutant, ...]:
    """Return every mutant of every form."""
    return tuple(mutant for table in FORM_FAMILIES.values() for mutant in table)
