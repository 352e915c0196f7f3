"""Additive attention, softmax(v_a^T tanh(W_q q + W_k k)) V: a small network scores each pair (chapter "additive
attention")."""

from __future__ import annotations

import torch

from attnspec.reference import masks
from attnspec.reference.softmax import lse, softmax
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError


def additive_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    v_a: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
) -> Result:
    """Return output, lse and weights of additive attention, all in float64.

    query: (batch, heads, q_len, query_dim); key: (batch, heads, k_len, key_dim); value: (batch, heads, k_len,
    value_dim); w_q: (hidden, query_dim); w_k: (hidden, key_dim); v_a: (hidden,), all of one floating dtype. attn_mask:
    bool or additive, of a shape that broadcasts to (batch, heads, q_len, k_len). Returns output (batch, heads, q_len,
    value_dim), lse (batch, heads, q_len) and weights (batch, heads, q_len, k_len). Raises InputError where shapes or
    dtypes do not fit. Rules: `additive.softmax`, `additive.mask`. Source: Bahdanau et al. 2015, section 3.1, equations
    5 and 6.
    """
    scores = additive_scores(query, key, w_q, w_k, v_a)  # (batch, heads, q_len, k_len)
    if value.ndim != 4 or value.shape[:3] != key.shape[:3] or value.dtype != key.dtype:
        raise InputError(
            f"value is {value.dtype} {tuple(value.shape)}: use {key.dtype} {tuple(key.shape[:3])} and value_dim"
        )
    shape = (scores.shape[0], scores.shape[1], scores.shape[2], scores.shape[3])
    scores = scores + masks.bias(shape, attn_mask)
    visible = masks.visible(shape, attn_mask, is_causal, causal_alignment)
    weights = softmax(scores, visible)  # (batch, heads, q_len, k_len)
    return Result(output=weights @ value.double(), lse=lse(scores, visible), weights=weights)


def additive_scores(
    query: torch.Tensor, key: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, v_a: torch.Tensor
) -> torch.Tensor:
    """Return the scores s_ij = v_a^T tanh(W_q q_i + W_k k_j), float64 (batch, heads, q_len, k_len).

    The arguments are those of `additive_attention`. There is no factor 1/sqrt(d): tanh keeps every score within the
    sum of abs(v_a). Raises InputError where shapes or dtypes do not fit. Rule: `additive.score`. Source: Bahdanau et
    al. 2015, appendix A.1.2 (there W_a, U_a and v_a).
    """
    check_inputs(query, key, w_q, w_k, v_a)
    from_query = query.double() @ w_q.double().T  # (batch, heads, q_len, hidden)
    from_key = key.double() @ w_k.double().T  # (batch, heads, k_len, hidden)
    hidden = torch.tanh(from_query[..., :, None, :] + from_key[..., None, :, :])  # (..., q_len, k_len, hidden)
    return hidden @ v_a.double()


def check_inputs(
    query: torch.Tensor, key: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, v_a: torch.Tensor
) -> None:
    """Raise InputError where the tensors of a score do not fit each other."""
    dimensions = {"query": (query, 4), "key": (key, 4), "w_q": (w_q, 2), "w_k": (w_k, 2), "v_a": (v_a, 1)}
    for name, (tensor, ndim) in dimensions.items():
        if tensor.ndim != ndim:
            raise InputError(f"{name} has {tensor.ndim} dimensions: use {ndim}")
        if tensor.dtype != query.dtype or not tensor.dtype.is_floating_point:
            raise InputError(f"{name} is {tensor.dtype} and query is {query.dtype}: use one floating dtype")
    if query.shape[:2] != key.shape[:2]:
        raise InputError(f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in batch or heads")
    for name, weight, dim in (("w_q", w_q, query.shape[3]), ("w_k", w_k, key.shape[3])):
        if weight.shape != (len(v_a), dim):
            raise InputError(f"{name} is {tuple(weight.shape)}: use {(len(v_a), dim)}, (hidden, dim)")
