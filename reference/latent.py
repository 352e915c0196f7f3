"""Latent attention: keys and values that all heads expand from one compressed vector a token (chapter "latent")."""

from __future__ import annotations

from typing import NamedTuple

import torch

from attnspec.reference.attention import attention, softmax_scale
from attnspec.reference.backward import backward
from attnspec.reference.rope import rotate
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError


class LatentGradients(NamedTuple):
    """The gradients of a loss, each of its input's shape."""

    query: torch.Tensor
    latent: torch.Tensor
    key_rope: torch.Tensor
    w_uk: torch.Tensor
    w_uv: torch.Tensor


def latent_attention(
    query: torch.Tensor,
    latent: torch.Tensor,
    key_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
    *,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    key_lengths: torch.Tensor | None = None,
) -> Result:
    """Return latent attention in its expanded form, in float64: each head makes its keys and values, then attends.

    query: (batch, heads, q_len, nope_dim + rope_dim), the part that is not rotated first; latent: (batch, k_len,
    kv_rank) and key_rope: (batch, k_len, rope_dim), what the cache holds of each token, key_rope rotated by its
    position; w_uk: (heads, nope_dim, kv_rank); w_uv: (heads, value_dim, kv_rank), all of floating dtypes. scale: None
    is 1/sqrt(nope_dim + rope_dim). is_causal, causal_alignment, key_lengths: those of
    `attnspec.reference.attention.attention`. Returns output (batch, heads, q_len, value_dim), lse and weights. Raises
    InputError where shapes, dtypes or scale do not fit. Rules: `latent.expanded`, `latent.scale`, `latent.shared-rope`.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1, equations 9 to 19.
    """
    check_latent(query, latent, key_rope, w_uk, w_uv)
    key, value = expand(latent, key_rope, w_uk, w_uv)
    return attention(
        query.double(),
        key,
        value,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        key_lengths=key_lengths,
    )


def absorbed_attention(
    query: torch.Tensor,
    latent: torch.Tensor,
    key_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
    *,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    key_lengths: torch.Tensor | None = None,
) -> Result:
    """Return latent attention in its absorbed form, in float64: multi-query attention over the cache as it is.

    Arguments, result and errors are those of `latent_attention`. Since q . (W^UK c) = (q W^UK) . c and the values enter
    linearly, each head takes W^UK into its query and W^UV out of the sum:

        q' = [q_nope W^UK, q_rope]    k' = [c, k_rope]    v' = c    o = W^UV attention(q', k', v')

    The scale stays that of nope_dim + rope_dim. Rules: `latent.absorbed`, `latent.scale`. Source: DeepSeek-AI 2024
    (DeepSeek-V2), section 2.1.2.
    """
    check_latent(query, latent, key_rope, w_uk, w_uv)
    nope_dim = w_uk.shape[1]
    scale = softmax_scale(scale, query.shape[-1])
    from_latent = query[..., :nope_dim].double() @ w_uk.double()  # (batch, heads, q_len, kv_rank)
    result = attention(
        torch.cat([from_latent, query[..., nope_dim:].double()], dim=-1),  # (batch, heads, q_len, kv_rank + rope_dim)
        torch.cat([latent, key_rope], dim=-1).double()[:, None],  # (batch, 1, k_len, kv_rank + rope_dim)
        latent.double()[:, None],  # (batch, 1, k_len, kv_rank)
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=True,
        key_lengths=key_lengths,
    )
    output = result.output @ w_uv.double().transpose(-1, -2)  # (batch, heads, q_len, value_dim)
    return Result(output=output, lse=result.lse, weights=result.weights)


def latent_backward(
    query: torch.Tensor,
    latent: torch.Tensor,
    key_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
    grad_output: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    key_lengths: torch.Tensor | None = None,
) -> LatentGradients:
    """Return the gradients of a loss with respect to query, latent, key_rope, w_uk and w_uv, in float64.

    Arguments as those of `latent_attention`; grad_output: (batch, heads, q_len, value_dim); grad_lse: (batch, heads,
    q_len), None for 0, of any floating dtype. With dk and dv the gradients of the keys and values of a head (chapter
    "backward"):

        dc = sum over heads of W^UK^T dk_nope + W^UV^T dv        dk_rope = sum over heads of dk_rope of the head
        dW^UK = sum over batch and keys of dk_nope c^T           dW^UV = sum over batch and keys of dv c^T

    Raises InputError as `latent_attention` and `backward` do. Rule: `latent.gradient`. Source: the chain rule on
    DeepSeek-AI 2024, equations 9 to 19.
    """
    check_latent(query, latent, key_rope, w_uk, w_uv)
    key, value = expand(latent, key_rope, w_uk, w_uv)
    grads = backward(
        query.double(),
        key,
        value,
        grad_output,
        grad_lse=grad_lse,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        key_lengths=key_lengths,
    )
    nope_dim, c = w_uk.shape[1], latent.double()
    if key_lengths is not None:  # what is absent has no part in a product
        c = torch.where(torch.arange(c.shape[1])[:, None] < key_lengths[:, None, None], c, 0.0)
    grad_nope, grad_rope = grads.key[..., :nope_dim], grads.key[..., nope_dim:]
    return LatentGradients(
        query=grads.query,
        latent=(grad_nope @ w_uk.double() + grads.value @ w_uv.double()).sum(1),  # (batch, k_len, kv_rank)
        key_rope=grad_rope.sum(1),  # (batch, k_len, rope_dim)
        w_uk=(grad_nope.transpose(-1, -2) @ c[:, None]).sum(0),  # (heads, nope_dim, kv_rank)
        w_uv=(grads.value.transpose(-1, -2) @ c[:, None]).sum(0),  # (heads, value_dim, kv_rank)
    )


def expand(
    latent: torch.Tensor, key_rope: torch.Tensor, w_uk: torch.Tensor, w_uv: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys (batch, heads, k_len, nope_dim + rope_dim) and values (batch, heads, k_len, value_dim) of all
    heads, in float64: k = [W^UK c, k_rope], v = W^UV c. Rules: `latent.expanded`, `latent.shared-rope`."""
    c = latent.double()[:, None]  # (batch, 1, k_len, kv_rank)
    nope = c @ w_uk.double().transpose(-1, -2)  # (batch, heads, k_len, nope_dim)
    rope = key_rope.double()[:, None].expand(-1, len(w_uk), -1, -1)  # (batch, heads, k_len, rope_dim)
    return torch.cat([nope, rope], dim=-1), c @ w_uv.double().transpose(-1, -2)


def rotate_last(
    x: torch.Tensor, rope_dim: int, positions: torch.Tensor, inv_freq: torch.Tensor, layout: str = "interleaved"
) -> torch.Tensor:
    """Return queries with their last rope_dim elements rotated, float64 (batch, heads, length, head_dim).

    x: (batch, heads, length, head_dim); positions to layout: those of `attnspec.reference.rope.rotate`, inv_freq of
    rope_dim / 2 pairs. A key_rope is rotated as x = key_rope[:, None] with rope_dim all of it. Raises InputError where
    they do not fit. Rule: `latent.decoupled-rope`. Source: DeepSeek-AI 2024, section 2.1.3.
    """
    if not 0 < rope_dim <= x.shape[-1] or 2 * len(inv_freq) != rope_dim:
        raise InputError(
            f"rope_dim {rope_dim} of {x.shape[-1]} elements and {len(inv_freq)} pairs: use rope_dim / 2 pairs"
        )
    kept, turned = x[..., : x.shape[-1] - rope_dim], x[..., x.shape[-1] - rope_dim :]
    return torch.cat([kept.double(), rotate(turned, positions, inv_freq, layout)], dim=-1)


def cache_elements(kv_rank: int, rope_dim: int) -> int:
    """Return how many numbers a token takes in the cache of one layer, for all heads together. Rule: `latent.cache`.
    Source: DeepSeek-AI 2024, section 2.1.4, table 1."""
    return kv_rank + rope_dim


def check_latent(
    query: torch.Tensor, latent: torch.Tensor, key_rope: torch.Tensor, w_uk: torch.Tensor, w_uv: torch.Tensor
) -> None:
    """Raise InputError where the tensors of a call do not fit each other. Rule: `latent.shape`."""
    ranks = (
        ("query", query, 4),
        ("latent", latent, 3),
        ("key_rope", key_rope, 3),
        ("w_uk", w_uk, 3),
        ("w_uv", w_uv, 3),
    )
    for name, tensor, rank in ranks:
        if tensor.ndim != rank or not tensor.dtype.is_floating_point:
            raise InputError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}: use a floating dtype, {rank} dimensions")
    batch, heads, _, head_dim = query.shape
    kv_rank, rope_dim, nope_dim = latent.shape[2], key_rope.shape[2], head_dim - key_rope.shape[2]
    if latent.shape[0] != batch or key_rope.shape != (batch, latent.shape[1], rope_dim):
        shapes = f"latent {tuple(latent.shape)} and key_rope {tuple(key_rope.shape)}"
        raise InputError(f"{shapes}: use ({batch}, k_len, kv_rank) and ({batch}, k_len, rope_dim)")
    if w_uk.shape != (heads, nope_dim, kv_rank):
        raise InputError(
            f"w_uk has shape {tuple(w_uk.shape)}: use (heads, nope_dim, kv_rank) = {(heads, nope_dim, kv_rank)}"
        )
    if w_uv.shape != (heads, w_uv.shape[1], kv_rank):
        raise InputError(f"w_uv has shape {tuple(w_uv.shape)}: use ({heads}, value_dim, {kv_rank})")
