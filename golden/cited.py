"""Which rules a golden case cites: those its problem exercises, and those that its numbers put to the test."""

from __future__ import annotations

from attnspec.spec.exercised import rules_exercised
from attnspec.spec.problem import FINITE_CONTENTS, Problem

ALWAYS = ("notation.dtypes", "softmax.weights", "accuracy.output-within-budget", "accuracy.lse-within-budget")


def rules_of(p: Problem) -> tuple[str, ...]:
    """Return the ids of the rules that a kernel must follow to get this problem right, sorted."""
    biased = p.mask is not None and p.mask.kind == "float"
    finite = biased and p.mask is not None and p.mask.content in FINITE_CONTENTS
    table = {
        "notation.layout": p.batch > 1 and p.q_heads > 1,
        "notation.shapes": p.q_len != p.k_len,
        "mask.finite-bias": finite,
        "mask.bias-then-mask": biased and p.causal is not None,
        "accuracy.gradients-within-budget": p.grad is not None,
        "backward.hidden": p.grad is not None and hides_keys(p),
        "backward.recompute-range": p.grad is not None and p.shift != 0,
        "mask.hidden-values": p.values == "spiky" and hides_keys(p),
    }
    special = (rule for rule, holds in table.items() if holds)
    return tuple(sorted({*ALWAYS, *rules_exercised(p, return_lse=True), *special}))


def hides_keys(p: Problem) -> bool:
    """Whether a query may see less than all keys."""
    return (
        p.causal is not None
        or p.window is not None
        or (p.mask is not None and p.mask.content not in ("all", "bias", *FINITE_CONTENTS))
    )
