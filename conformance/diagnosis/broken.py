"""Which rule a known mistake breaks: the most telling one, where a check of numbers can only name the budget."""

from __future__ import annotations

from attnspec.conformance.diagnosis.mistake import (
    Mistake,
    biased,
    bool_masked,
    causal,
    causal_and_masked,
    masked,
    scaled,
)
from attnspec.spec.problem import Problem

BREAKS = {  # the beginning of a mistake's name: the rule; the first that fits
    "window-drops-causal": "window.causal",
    "window-other-corner": "window.corner",
    "window-": "window.bounds",
    "softcap-missing-from-lse": "softcap.lse",
    "softcap-after-bias": "softcap.bias",
    "softcap-": "softcap.scores",
    "lengths-corner": "key-lengths.causal",
    "lengths-": "key-lengths.visible",
    "mask-or-causal": "mask.combine",
    "mask-of-key-head": "grouped.head-map",
    "mask-rank3": "mask.broadcast",
    "maximum-": "softmax.any-finite-score",
    "finite-sentinel": "softmax.any-finite-score",
    "empty-row": "mask.fully-masked-row",
    "scale-": "attention.scale-default",
    "softmax-": "softmax.weights",
    "rescale-": "softmax.weights",
    "tail-scored-0": "softmax.weights",
    "alibi-other-form": "alibi.form",
    "alibi-other-corner": "alibi.offset",
    "alibi-": "alibi.bias",
    "sink-not-in-lse": "sinks.lse",
    "sink-": "sinks.weight",
    "lse-base": "softmax.lse-base",
    "lse-mixed": "softmax.lse-base",
    "lse-of-empty-row": "softmax.lse-empty-row",
    "lse-in-": "accuracy.lse-within-budget",
    "lse-": "softmax.lse",
    "heads-": "grouped.head-map",
    "value-dim-tail": "contract.output-written",
    "row-tail": "contract.output-written",
    "batch-0-keys": "attention.output",
    "last-key": "attention.output",
    "first-": "attention.output",
    "tail-dropped": "attention.output",
    "keys-beyond": "attention.output",
    "head-dim-tail": "attention.output",
    "scores-in": "accuracy.output-within-budget",
    "weights-in": "accuracy.output-within-budget",
    "inputs-in": "accuracy.output-within-budget",
    "output-in": "accuracy.output-within-budget",
    "sum-in": "accuracy.output-within-budget",
}
BREAKS_BY_NEED = {  # what a call must have to show the mistake: the rule, where the name says none
    causal_and_masked: "mask.combine",
    bool_masked: "mask.bool",
    biased: "mask.additive",
    scaled: "attention.scale-explicit",
}


def broken_rule(mistake: Mistake, problem: Problem) -> str:
    """Return the id of the rule that a mistake breaks in a problem."""
    if mistake.rule:
        return mistake.rule
    if mistake.needs is causal:
        return f"mask.causal-{(problem.causal or 'upper_left').replace('_', '-')}"
    if mistake.needs in BREAKS_BY_NEED:
        return BREAKS_BY_NEED[mistake.needs]
    for beginning, rule in BREAKS.items():
        if mistake.name.startswith(beginning):
            return rule
    assert mistake.needs is masked, f"no rule stands beside the mistake {mistake.name}"
    return "mask.additive" if problem.mask and problem.mask.kind == "float" else "mask.bool"
