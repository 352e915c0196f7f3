"""Which rules a problem exercises: what a case can cite without being told."""

from __future__ import annotations

from attnspec.spec.problem import FINITE_CONTENTS, Problem


def rules_exercised(problem: Problem, return_lse: bool = False) -> tuple[str, ...]:
    """Return the ids of the rules that decide the answer to a problem, the most special first."""
    p = problem
    mask = p.mask
    causal_rule = f"mask.causal-{(p.causal or 'upper_left').replace('_', '-')}"
    empties = mask is not None and mask.content in ("empty_rows", "empty_head")
    unusual_scale = p.scale is not None and (p.scale < 0 or p.scale > 1)
    biased = mask is not None and mask.kind == "float"
    low_bias = biased and mask is not None and mask.content in FINITE_CONTENTS
    tall = leaves_rows_empty(p)
    lengths, grad, window = p.key_lengths is not None, p.grad is not None, p.window is not None
    table = {
        "attention.zero-length": p.k_len == 0 or p.q_len == 0,
        "softmax.lse-empty-row": return_lse and (empties or tall or p.k_len == 0) and p.sinks is None,
        "mask.fully-masked-row": empties or tall,
        "mask.combine": mask is not None and p.causal is not None,
        "softcap.gradient": grad and p.softcap is not None,
        "softcap.bias": p.softcap is not None and (mask is not None or window or p.causal is not None),
        "softcap.lse": return_lse and p.softcap is not None,
        "softcap.scores": p.softcap is not None,
        "window.combine": window and (mask is not None or lengths),
        "window.causal": window and p.causal is not None,
        "window.corner": window and (p.q_len != p.k_len or lengths),
        "window.bounds": window,
        causal_rule: p.causal is not None,
        "mask.key-padding": mask is not None and (mask.content == "padding" or mask[:2] == ("bool", "b11k")),
        "mask.bool": mask is not None and mask.kind == "bool",
        "mask.additive": biased,
        "mask.broadcast": mask is not None and mask.shape != "bhqk",
        "grouped.multi-query": p.kv_heads == 1 < p.q_heads,
        "grouped.head-map": p.kv_heads != p.q_heads,
        "backward.empty-row": grad and (empties or (window and tall)),
        "backward.lse": p.grad == "lse",
        "backward.bias": grad and biased,
        "backward.broadcast": grad
        and (p.kv_batch != p.batch or (biased and mask is not None and mask.shape != "bhqk")),
        "backward.grouped": grad and p.kv_heads != p.q_heads,
        "backward.matches-forward": grad
        and (mask is not None or p.causal is not None or p.scale is not None or window or p.softcap is not None),
        "backward.query": grad,
        "backward.key": grad,
        "backward.value": grad,
        "alibi.gradient": grad and p.alibi is not None,
        "alibi.offset": p.alibi is not None and (p.q_len != p.k_len or lengths),
        "alibi.form": p.alibi is not None and (p.causal is None or p.alibi.corner != p.causal),
        "alibi.bias": p.alibi is not None,
        "sinks.gradient": grad and p.sinks is not None,
        "sinks.empty-row": p.sinks is not None and (empties or tall),
        "sinks.lse": return_lse and p.sinks is not None,
        "sinks.any-size": p.sinks is not None and (p.sinks != "normal" or p.shift != 0),
        "sinks.weight": p.sinks is not None,
        "key-lengths.zero": p.key_lengths == "zero",
        "key-lengths.causal": lengths and p.causal is not None,
        "key-lengths.visible": lengths,
        "softmax.any-finite-score": p.shift != 0 or p.scores > 1 or low_bias or unusual_scale,
        "accuracy.overflow": p.values == "huge",
        "attention.scale-explicit": p.scale is not None,
        "attention.value-dim": p.value_dim != p.head_dim,
        "attention.kv-broadcast": p.kv_batch != p.batch,
        "softmax.lse": return_lse,
        "attention.scale-default": p.scale is None,
        "attention.output": True,
    }
    return tuple(rule for rule, exercised in table.items() if exercised)


def leaves_rows_empty(p: Problem) -> bool:
    """Whether causal triangle or window alone leave a row without a key."""
    left, right = (-1, -1) if p.window is None else p.window.size
    right = 0 if p.causal else right
    if p.corner == "lower_right":
        return right != -1 and p.q_len - p.k_len > right
    return left != -1 and p.q_len - p.k_len > left
