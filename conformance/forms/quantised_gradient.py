"""The budget of the gradient of the query over quantised keys and values: a backward pass over the products of scale
and number with an error at every step, and what these errors do to it (chapter "accuracy", "Derivation for the forms").

Shapes of a head: query (q_len, head_dim), key (k_len, head_dim), value (k_len, value_dim), grad_output (q_len,
value_dim), grad_lse (q_len, 1), visible (q_len, k_len); those of a batch element have the query heads before them. Key
and value are the products. All are float64, visible bool.
"""

from __future__ import annotations

from functools import partial

import torch

from attnspec.conformance.forms.propagation import Bound, propagated
from attnspec.conformance.forms.softmax_backward import softmax_errors, summed, through_softmax
from attnspec.conformance.forms.target import Tensors
from attnspec.conformance.gradient_errors import Backward
from attnspec.conformance.rows import Arithmetic, Rows

LEAST_SCALE = 2.0**-500  # so that what is divided by a scale of 0 stays finite; it meets keys of 0


def product_roundoff(a: Arithmetic) -> float:
    """Return y, the unit roundoff of scale times stored number: u in class eager, else w. Rule:
    `quantised.product-rounding`."""
    return a.scores or a.work


def query_pass(x: Tensors, e: Tensors, scale: float) -> Tensors:
    """Return the gradient of the query of one head, with errors e at the steps."""
    key, value = x["key"] + e["key"], x["value"] + e["value"]
    scores = scale * (x["query"] + e["query"]) @ key.mT  # (q_len, k_len)
    product = (x["grad_output"] + e["flow"]) @ value.mT
    _, back = through_softmax(scores, product, x, e, scale)
    return {"query": back @ key}


def query_bound(x: Tensors, key_scale: torch.Tensor, value_scale: torch.Tensor, scale: float, a: Arithmetic) -> Bound:
    """Return what the gradients of the query of one batch element may be off by, (heads, q_len, head_dim). Chapter
    "accuracy", equation (16).

    key_scale, value_scale: (heads, 1 or k_len, 1 or dim) float64, where a kernel may fold them. A product is rounded as
    its stored number says, so that equal ones are off alike: keys and values are kinds of error each. A kernel that
    folds scales of channels rounds query, grad_output, output and gradient instead.
    """
    y, key, value, flow = product_roundoff(a), x["key"], x["value"], x["grad_output"]
    rows = Rows.of(x["query"], key, value, None, x["visible"], scale, a)
    random, fixed, back = softmax_errors(rows, x["visible"], Backward(flow, x["grad_lse"], value, 1.0))
    output2 = ((flow * (rows.p @ value)) ** 2).sum(-1, keepdim=True)
    random |= {
        "query": _folded(x["query"], key_scale, a),
        "flow": _folded(flow, value_scale, a),
        "delta": torch.sqrt(random["delta"] ** 2 + y**2 * output2),
    }
    if key_scale.shape[-1] == 1:  # dS may be stored after it is scaled by both
        least = a.weights_step / (scale * key_scale.mT).abs().clamp_min(LEAST_SCALE)
        random["grad_score"] = torch.where(rows.p > 0, random["grad_score"].maximum(least), 0.0)
    fixed |= {"key": y * key, "value": y * value}
    total, of_sum = summed(back, key, a)
    last = {"query": torch.sqrt(of_sum**2 + (y * total) ** 2)}
    return propagated(partial(query_pass, scale=scale), x, (), random, fixed, last)["query"]


def _folded(x: torch.Tensor, scale: torch.Tensor, a: Arithmetic) -> torch.Tensor:
    """Return what x, (heads, q_len, dim), is off by where scales of channels are folded into it."""
    error = product_roundoff(a) * x.abs()
    if a.scores and scale.shape[-2] == 1:
        error = error.maximum(a.weights_step / scale.abs().clamp_min(LEAST_SCALE))
    return error
