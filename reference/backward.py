"""The gradients of attention in closed form, as documented and in float64 (chapter "backward")."""

from __future__ import annotations

import torch

from attnspec.reference import alibi, dropout, grouped_heads, lengths, masks
from attnspec.reference import softcap as caps
from attnspec.reference.attention import check_inputs, softmax_scale
from attnspec.reference.sinks import as_scores
from attnspec.reference.sinks import backward as sinks_backward
from attnspec.reference.softmax import lse, softmax
from attnspec.spec.call import Call, Gradients
from attnspec.spec.errors import InputError


def backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_output: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    alibi_form: str = "symmetric",
    alibi_alignment: str = "upper_left",
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    keep: torch.Tensor | None = None,
) -> Gradients:
    """Return the gradients of a loss by query, key, value, an additive attn_mask, sinks and slopes, all in float64.

    query to value and attn_mask to softcap are those of `attnspec.reference.attention.attention`. grad_output:
    gradient of the loss with respect to the output, (batch, q_heads, q_len, value_dim); grad_lse: with respect to the
    lse, (batch, q_heads, q_len), None for 0; of any floating dtype. dropout_p: in [0, 1); keep: the bool mask that
    dropout drew in the forward, (batch, q_heads, q_len, k_len), True where a weight is kept. Hidden slots and rows
    that see no key add exactly 0. Raises InputError where shapes or dtypes do not fit, or scale is not finite. Rules:
    `backward.query`, `backward.key`, `backward.value`, `backward.bias`, `backward.lse`, `backward.empty-row`,
    `backward.hidden`, `backward.matches-forward`, `softcap.gradient`, `sinks.gradient`, `alibi.gradient`,
    `backward.dropout`. Source: Dao et al. 2022 (FlashAttention), appendix B.2.
    """
    check_inputs(query, key, value, enable_gqa)
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    check_gradients(query, value, grad_output, grad_lse)
    check_dropout(shape, dropout_p, keep)
    scale = softmax_scale(scale, query.shape[-1])
    given_key, given_value = key, value
    if key_lengths is not None:
        key = lengths.clear_absent(key, query.shape[0], key_lengths)  # (batch, kv_heads, k_len, head_dim)
        value = lengths.clear_absent(value, query.shape[0], key_lengths)  # (batch, kv_heads, k_len, value_dim)
    queries, grad_output = query.double(), grad_output.double()
    keys = grouped_heads.expand(key.double(), query.shape[1])  # (batch, q_heads, k_len, head_dim)
    values = grouped_heads.expand(value.double(), query.shape[1])  # (batch, q_heads, k_len, value_dim)

    scaled = scale * (queries @ keys.transpose(-1, -2))  # (batch, q_heads, q_len, k_len)
    scores = caps.apply(scaled, softcap) + masks.bias(shape, attn_mask)
    if alibi_slopes is not None:
        alibi.fitting_slopes(alibi_slopes, shape[0], shape[1])
        distances = alibi.distance(
            *shape[2:], form=alibi_form, alignment=alibi_alignment, key_lengths=key_lengths
        )  # (1 or batch, 1, q_len, k_len)
        scores = scores + alibi.bias(alibi_slopes, distances)
    visible = masks.visible(shape, attn_mask, is_causal, causal_alignment, key_lengths, window_size)
    sink = None if sinks is None else as_scores(sinks, shape[1])  # (q_heads, 1)
    weights = softmax(scores, visible, sink)  # (batch, q_heads, q_len, k_len)

    grad_weights = grad_output @ values.transpose(-1, -2)  # (batch, q_heads, q_len, k_len)
    dropped = weights
    if keep is not None:  # dropout multiplies by constants: its backward is dropout with the same mask
        dropped = dropout.apply(weights, keep, dropout_p)
        grad_weights = dropout.apply(grad_weights, keep, dropout_p)
    grad_scores = softmax_backward(weights, grad_weights, visible, grad_lse)  # (batch, q_heads, q_len, k_len)
    grad_scaled = grad_scores * caps.slope(scaled, softcap)  # (batch, q_heads, q_len, k_len)
    grad_keys = scale * (grad_scaled.transpose(-1, -2) @ queries)  # (batch, q_heads, k_len, head_dim)
    grad_values = dropped.transpose(-1, -2) @ grad_output
    grad_sinks = None
    if sinks is not None:
        delta = (weights * torch.where(visible, grad_weights, 0.0)).sum(-1)  # (batch, q_heads, q_len)
        grad_sinks = sinks_backward(sinks, lse(scores, visible, sink), delta, grad_lse)
    grad_slopes = None if alibi_slopes is None else alibi.slopes_backward(grad_scores, distances, alibi_slopes)
    return Gradients(
        query=scale * (grad_scaled @ keys),
        key=sum_readers(grad_keys, given_key),
        value=sum_readers(grad_values, given_value),
        attn_mask=mask_backward(grad_scores, attn_mask),
        sinks=grad_sinks,
        alibi_slopes=grad_slopes,
    )


def gradients(call: Call, causal_alignment: str = "upper_left", keep: torch.Tensor | None = None) -> Gradients:
    """Return what the reference says of a call that gradients flow back through. keep: the mask that its dropout drew.
    Raises InputError without a `grad_output`, and without keep for a call with dropout."""
    if call.grad_output is None:
        raise InputError("the call has no grad_output: give one")
    return backward(
        call.query,
        call.key,
        call.value,
        call.grad_output,
        grad_lse=call.grad_lse,
        attn_mask=call.attn_mask,
        is_causal=call.is_causal,
        causal_alignment=causal_alignment,
        scale=call.scale,
        enable_gqa=call.enable_gqa,
        key_lengths=call.key_lengths,
        sinks=call.sinks,
        alibi_slopes=call.alibi_slopes,
        alibi_form=call.alibi_form,
        alibi_alignment=call.alibi_alignment,
        window_size=call.window_size,
        softcap=call.softcap,
        dropout_p=call.dropout_p,
        keep=keep,
    )


def softmax_backward(
    weights: torch.Tensor, grad_weights: torch.Tensor, visible: torch.Tensor, grad_lse: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the gradient with respect to the scores, p_j (dp_j - delta + dlse), delta = sum_l p_l dp_l.

    weights, grad_weights, visible: (..., q_len, k_len); grad_lse: (..., q_len), None for 0. Returns (..., q_len,
    k_len), 0 in hidden slots whatever finite numbers their values hold. Rules: `backward.query`, `backward.lse`,
    `backward.hidden`, `backward.empty-row`. Source: Dao et al. 2022, appendix B.2.
    """
    grad_weights = torch.where(visible, grad_weights, 0.0)
    delta = (weights * grad_weights).sum(-1, keepdim=True)  # (..., q_len, 1)
    grad_scores = grad_weights - delta  # (..., q_len, k_len)
    if grad_lse is not None:
        grad_scores = grad_scores + grad_lse.double()[..., None]
    return weights * grad_scores


def sum_readers(grad: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a key or value tensor: the sum over the query heads and batches that read it.

    grad: (batch, q_heads, k_len, dim), one for each query head; heads: the tensor as given, (kv_batch, kv_heads,
    k_len, dim), kv_batch batch or 1. Returns the shape of `heads`. Rules: `backward.grouped`, `backward.broadcast`.
    """
    kv_batch, kv_heads = heads.shape[:2]
    batch, q_heads, k_len, dim = grad.shape
    groups = grad.reshape(batch, kv_heads, q_heads // kv_heads, k_len, dim)
    summed = groups.sum(2)  # (batch, kv_heads, k_len, dim)
    return summed.sum(0, keepdim=True) if kv_batch == 1 else summed


def mask_backward(grad_scores: torch.Tensor, attn_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return the gradient of an additive mask: that of the scores, summed over what the mask was broadcast along.

    grad_scores: (batch, q_heads, q_len, k_len). Returns the shape of attn_mask; None for a bool mask or none. Rules:
    `backward.bias`, `backward.broadcast`.
    """
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return None
    summed: torch.Tensor = grad_scores.sum_to_size(attn_mask.shape)
    return summed


def check_gradients(
    query: torch.Tensor, value: torch.Tensor, grad_output: torch.Tensor, grad_lse: torch.Tensor | None
) -> None:
    """Raise InputError where the gradients that come in do not have the shapes of output and lse."""
    rows = query.shape[:3]
    for name, grad, shape in (
        ("grad_output", grad_output, (*rows, value.shape[-1])),
        ("grad_lse", grad_lse, tuple(rows)),
    ):
        if grad is None:
            continue
        if tuple(grad.shape) != shape:
            raise InputError(f"{name} has shape {tuple(grad.shape)}: use {shape}")
        if not grad.dtype.is_floating_point:
            raise InputError(f"{name} is {grad.dtype}: use a floating dtype")


def check_dropout(shape: tuple[int, int, int, int], dropout_p: float, keep: torch.Tensor | None) -> None:
    """Raise InputError where dropout_p is no probability below 1, or keep is missing or does not fit the weights."""
    if not 0 <= dropout_p < 1:
        raise InputError(f"dropout_p is {dropout_p}: use a probability of at least 0 and less than 1")
    if dropout_p > 0 and keep is None:
        raise InputError(f"dropout_p is {dropout_p} and keep is None: give the mask that the forward drew")
    if keep is not None and (keep.dtype != torch.bool or tuple(keep.shape) != shape):
        raise InputError(f"keep is {keep.dtype} {tuple(keep.shape)}: use a bool mask {shape}")
