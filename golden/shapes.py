"""The dtype and shape of every stored tensor of an attention problem."""

from __future__ import annotations

from attnspec.spec.call import Gradients
from attnspec.spec.problem import Problem

Shapes = dict[str, tuple[str, tuple[int, ...]]]  # of each tensor: dtype, shape


def shapes_of(p: Problem) -> Shapes:
    """Return the dtype and shape of every stored tensor of a problem."""
    shapes: Shapes = {
        "query": (p.dtype, (p.batch, p.q_heads, p.q_len, p.head_dim)),
        "key": (p.dtype, (p.kv_batch, p.kv_heads, p.k_len, p.head_dim)),
        "value": (p.dtype, (p.kv_batch, p.kv_heads, p.k_len, p.value_dim)),
        "output": ("float64", (p.batch, p.q_heads, p.q_len, p.value_dim)),
        "lse": ("float64", (p.batch, p.q_heads, p.q_len)),
    }
    if p.mask:
        sizes = {"b": p.batch, "h": p.q_heads, "q": p.q_len, "k": p.k_len, "1": 1}
        dtype = "bool" if p.mask.kind == "bool" else p.dtype
        shapes["attn_mask"] = (dtype, tuple(sizes[letter] for letter in p.mask.shape))
    if p.key_lengths:
        shapes["key_lengths"] = ("int32", (p.batch,))
    if p.sinks:
        shapes["sinks"] = (p.dtype, (p.q_heads,))
    if p.alibi:
        shapes["alibi_slopes"] = ("float32", (p.q_heads,) if p.alibi.shape == "h" else (p.batch, p.q_heads))
    if p.grad:
        shapes |= gradient_shapes_of(p, shapes)
    return shapes


def gradient_shapes_of(p: Problem, shapes: Shapes) -> Shapes:
    """Return the dtype and shape of what flows back in a problem, and of every true gradient."""
    found: Shapes = {"grad_output": (p.dtype, shapes["output"][1])}
    if p.grad == "lse":
        found["grad_lse"] = ("float64" if p.dtype == "float64" else "float32", shapes["lse"][1])
    constant = ("alibi_slopes",) if p.alibi and not p.alibi.learned else ()
    for name in Gradients._fields:
        if name in shapes and shapes[name][0] != "bool" and name not in constant:
            found[f"grad_{name}"] = ("float64", shapes[name][1])
    return found
