"""The error budget of a call with dropout, from that of a call without: each row has values of its own, D_ij v_j.

With D_ij = keep_ij / (1 - p), o_i = sum_j p_ij (D_ij v_j), so that a row is a call of one query whose values are scaled
or 0. Chapters "dropout" and "accuracy".
"""

from __future__ import annotations

import torch

from attnspec.conformance.budget import arithmetic_of, error_budget, positions_of
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.reference import grouped_heads, lengths, masks
from attnspec.reference.attention import attention
from attnspec.reference.backward import sum_readers
from attnspec.spec.call import Call, Gradients
from attnspec.spec.dtypes import format_of

FACTOR_ROUNDOFFS = 3  # of 1 - p, of the division, and of the product with the weight


def dropout_budget(
    call: Call, keep: torch.Tensor, *, causal_alignment: str = "upper_left", accuracy: str = "fused"
) -> torch.Tensor:
    """Return the budget of each element of the output, float64 (batch, q_heads, q_len, value_dim).

    call: with its `dropout_p`; keep: bool (batch, q_heads, q_len, k_len), the mask that was drawn. accuracy: `fused`
    or `eager`. Raises InputError as `error_budget` does. Rules: `dropout.inverted`, `accuracy.output-within-budget`.
    """
    rows = rows_apart(call, keep, causal_alignment)
    batch, heads, q_len, _ = call.query.shape
    apart = error_budget(rows, accuracy=accuracy).output.reshape(batch, heads, q_len, -1)
    magnitude = attention(
        rows.query, rows.key, rows.value.abs(), attn_mask=rows.attn_mask, scale=rows.scale, softcap=rows.softcap
    ).output
    return apart + factor_unit(call, accuracy) * magnitude.reshape(apart.shape)


def dropout_gradient_budget(
    call: Call, keep: torch.Tensor, *, causal_alignment: str = "upper_left", accuracy: str = "fused"
) -> Gradients:
    """Return the budget of each element of the gradients of query, key and value, float64, each of its input's shape.

    call: with `dropout_p` and `grad_output`; keep: as in `dropout_budget`. The budgets of the rows are added up where
    the rows are, and so are the roundings of that sum. Raises InputError as `gradient_budget` does. Rules:
    `dropout.backward-mask`, `accuracy.gradients-within-budget`.
    """
    assert call.grad_output is not None, "a call with gradients"
    rows = rows_apart(call, keep, causal_alignment)
    batch, heads, q_len, head_dim = call.query.shape
    shape = (batch, heads, q_len, call.key.shape[2])
    flow = call.grad_output.reshape(batch, heads * q_len, 1, -1)
    flow_lse = None if call.grad_lse is None else call.grad_lse.reshape(batch, heads * q_len, 1)
    apart = gradient_budget(rows, flow, flow_lse, accuracy=accuracy)
    factor = factors(keep, call.dropout_p)[..., None]  # (batch, q_heads, q_len, k_len, 1)

    weights = attention(
        rows.query, rows.key, rows.value, attn_mask=rows.attn_mask, scale=rows.scale, softcap=rows.softcap
    ).weights
    assert weights is not None, "the reference returns its weights"
    grad_weights = (flow.double() @ rows.value.double().transpose(-1, -2)).abs()  # |D dP|, a row each
    shared = (weights * grad_weights).sum(-1, keepdim=True)
    if flow_lse is not None:
        shared = shared + flow_lse.double().abs()[..., None]
    scale = head_dim**-0.5 if call.scale is None else abs(call.scale)
    grad_scores = scale * weights * (grad_weights + shared)  # no less than |dS|, (batch, q_heads * q_len, 1, k_len)
    of_query = grad_scores @ rows.key.double().abs()
    of_key = grad_scores.transpose(-1, -2) @ rows.query.double().abs()
    of_value = weights.transpose(-1, -2) @ flow.double().abs()

    readers = q_len * (heads // call.key.shape[1]) * (batch // call.key.shape[0])
    unit = factor_unit(call, accuracy)
    summed = unit + readers * arithmetic_of(format_of(call.query.dtype), accuracy).work
    key = (apart.key + summed * of_key).reshape(*shape, -1).sum(2)  # (batch, q_heads, k_len, head_dim)
    value = (factor * (apart.value + summed * of_value).reshape(*shape, -1)).sum(2)
    return Gradients(
        query=(apart.query + unit * of_query).reshape(call.query.shape),
        key=sum_readers(key, call.key),
        value=sum_readers(value, call.value),
    )


def rows_apart(call: Call, keep: torch.Tensor, causal_alignment: str) -> Call:
    """Return the call without dropout in which each row is a head of its own, with its own values D_ij v_j.

    query: (batch, q_heads * q_len, 1, head_dim); key, value: (batch, q_heads * q_len, k_len, dim); attn_mask: (batch,
    q_heads * q_len, 1, k_len), the visible set, or the bias and -inf where hidden.
    """
    batch, heads, q_len, head_dim = call.query.shape
    k_len = call.key.shape[2]
    shape = (batch, heads, q_len, k_len)
    key, value = call.key, call.value
    if call.key_lengths is not None:
        key, value = (lengths.clear_absent(x, batch, call.key_lengths) for x in (key, value))
    key, value = (grouped_heads.expand(x.expand(batch, -1, -1, -1), heads) for x in (key, value))
    scaled = factors(keep, call.dropout_p)[..., None] * value.double()[:, :, None]  # (batch, q_heads, q_len, k_len, dv)
    mask = masks.visible(shape, call.attn_mask, call.is_causal, causal_alignment, call.key_lengths, call.window_size)
    positions = positions_of(call, shape)
    if positions is not None:
        mask = (positions + masks.bias(shape, call.attn_mask)).masked_fill(~mask, -torch.inf)
    elif call.attn_mask is not None and call.attn_mask.dtype != torch.bool:
        mask = masks.broadcast(call.attn_mask, shape).masked_fill(~mask, -torch.inf)
    return Call(
        query=call.query.reshape(batch, heads * q_len, 1, head_dim),
        key=key.repeat_interleave(q_len, dim=1),
        value=scaled.to(call.value.dtype).reshape(batch, heads * q_len, k_len, -1),
        attn_mask=mask.reshape(batch, heads * q_len, 1, k_len),
        sinks=None if call.sinks is None else call.sinks.repeat_interleave(q_len),
        scale=call.scale,
        softcap=call.softcap,
    )


def factors(keep: torch.Tensor, dropout_p: float) -> torch.Tensor:
    """Return D: 1 / (1 - dropout_p) where a weight is kept, 0 where it is dropped; float64, the shape of keep."""
    return torch.where(keep, 1 / (1 - dropout_p) if dropout_p < 1 else 0.0, torch.zeros((), dtype=torch.float64))


def factor_unit(call: Call, accuracy: str) -> float:
    """Return the relative error of a weight that the factor brings: in the format in which a kernel of the class holds
    weights."""
    arithmetic = arithmetic_of(format_of(call.query.dtype), accuracy)
    return FACTOR_ROUNDOFFS * max(arithmetic.work, arithmetic.weights)
