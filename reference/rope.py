"""RoPE: queries and keys are rotated by their position, pair of elements by pair (chapter "rope")."""

from __future__ import annotations

import torch

from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.spec.call import Gradients, Result
from attnspec.spec.errors import InputError

LAYOUTS = ("half_split", "interleaved")


def frequencies(rotary_dim: int, base: float = 10000.0) -> torch.Tensor:
    """Return the angle that each pair turns by from one position to the next, base^(-2 c / rotary_dim) for pair c.

    Returns float64 (rotary_dim / 2,). Raises InputError for an odd rotary_dim or one below 2, and for a base that is
    not positive and finite. Rules: `rope.rotation`, `rope.shape`. Source: Su et al. 2021, section 3.2.2.
    """
    if rotary_dim < 2 or rotary_dim % 2:
        raise InputError(f"rotary_dim is {rotary_dim}: use an even number from 2 on")
    if not 0 < base < float("inf"):
        raise InputError(f"base is {base}: use a positive finite number")
    pair = torch.arange(rotary_dim // 2).double()
    return base ** (-2 * pair / rotary_dim)


def rotate(
    x: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, layout: str = "half_split"
) -> torch.Tensor:
    """Return queries or keys rotated by their positions, float64 (batch, heads, length, head_dim).

    x: (batch, heads, length, head_dim), of any floating dtype; positions: (length,) or (batch, length), int32 or
    int64, of either sign; inv_freq: (rotary_dim / 2,), as from `frequencies`, rotary_dim at most head_dim. With the
    angle a = position * inv_freq[c], the pair (x1, x2) of number c becomes

        (x1 cos a - x2 sin a, x1 sin a + x2 cos a)

    `interleaved`: pair c is the elements 2 c and 2 c + 1; `half_split`: c and c + rotary_dim / 2. The elements from
    rotary_dim on stay as they are. Raises InputError where shapes, dtypes or the layout do not fit. Rules:
    `rope.rotation`, `rope.layout`, `rope.partial`. Source: Su et al. 2021 (RoFormer), section 3.4.2, equation 34.
    """
    check_rotation(x, positions, inv_freq, layout)
    rotary_dim = 2 * len(inv_freq)
    turned, rest = x.double()[..., :rotary_dim], x.double()[..., rotary_dim:]
    angle = positions.double()[..., None] * inv_freq.double()  # (length, pairs) or (batch, length, pairs)
    if angle.ndim == 3:
        angle = angle[:, None]  # (batch, 1, length, pairs)
    cos, sin = torch.cos(angle), torch.sin(angle)
    x1, x2 = pairs(turned, layout)  # (batch, heads, length, pairs) each
    y1, y2 = x1 * cos - x2 * sin, x1 * sin + x2 * cos
    return torch.cat([from_pairs(y1, y2, layout), rest], dim=-1)


def rotate_backward(
    grad: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, layout: str = "half_split"
) -> torch.Tensor:
    """Return the gradient before the rotation from that after it: the rotation by the negative angle, its transpose.

    Arguments as those of `rotate`; grad: (batch, heads, length, head_dim). Rule: `rope.gradient`. Source: Su et al.
    2021, section 3.2.2 (the matrix is orthogonal).
    """
    return rotate(grad, -positions, inv_freq, layout)


def rope_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    inv_freq: torch.Tensor,
    *,
    layout: str = "half_split",
    query_positions: torch.Tensor | None = None,
    key_positions: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
) -> Result:
    """Return attention of rotated queries over rotated keys; values are not rotated. Float64.

    query to value and is_causal to key_lengths: those of `attnspec.reference.attention.attention`. inv_freq and
    layout: those of `rotate`. query_positions, key_positions: (length,) or (batch, length); None is 0, 1, 2, ... For a
    decode step they are those of the whole sequence. Raises InputError as `rotate` and `attention` do. Rules:
    `rope.rotation`, `rope.position`, `rope.distance`. Source: Su et al. 2021, section 3.2.2, equation 16.
    """
    rotated_query, rotated_key = (
        rotate(x, counted(x) if positions is None else positions, inv_freq, layout)
        for x, positions in ((query, query_positions), (key, key_positions))
    )
    return attention(
        rotated_query,
        rotated_key,
        value.double(),
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
    )


def rope_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    inv_freq: torch.Tensor,
    grad_output: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    layout: str = "half_split",
    query_positions: torch.Tensor | None = None,
    key_positions: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_alignment: str = "upper_left",
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: torch.Tensor | None = None,
) -> Gradients:
    """Return the gradients of a loss with respect to query, key and value before the rotation, in float64.

    Arguments as those of `rope_attention`; grad_output: (batch, q_heads, q_len, value_dim); grad_lse: (batch, q_heads,
    q_len), None for 0. They are the gradients of attention, those of query and key rotated back. Raises InputError as
    `rope_attention` does. Rule: `rope.gradient`.
    """
    query_positions = counted(query) if query_positions is None else query_positions
    key_positions = counted(key) if key_positions is None else key_positions
    grads = backward(
        rotate(query, query_positions, inv_freq, layout),
        rotate(key, key_positions, inv_freq, layout),
        value.double(),
        grad_output,
        grad_lse=grad_lse,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
    )
    return Gradients(
        query=rotate_backward(grads.query, query_positions, inv_freq, layout),
        key=rotate_backward(grads.key, key_positions, inv_freq, layout),
        value=grads.value,
    )


def counted(x: torch.Tensor) -> torch.Tensor:
    """Return the positions 0, 1, 2, ... of (batch, heads, length, dim)."""
    return torch.arange(x.shape[2])


def pairs(x: torch.Tensor, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first and the second elements of the pairs, (..., pairs) each, of (..., rotary_dim). Rule:
    `rope.layout`."""
    if layout == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def from_pairs(x1: torch.Tensor, x2: torch.Tensor, layout: str) -> torch.Tensor:
    """Return (..., rotary_dim) from the elements of its pairs: the inverse of `pairs`. Rule: `rope.layout`."""
    if layout == "interleaved":
        return torch.stack([x1, x2], dim=-1).flatten(-2)
    return torch.cat([x1, x2], dim=-1)


def check_rotation(x: torch.Tensor, positions: torch.Tensor, inv_freq: torch.Tensor, layout: str) -> None:
    """Raise InputError where positions, frequencies or layout do not fit. Rule: `rope.shape`."""
    if layout not in LAYOUTS:
        raise InputError(f"rope_layout is {layout!r}: use one of {', '.join(LAYOUTS)}")
    if x.ndim != 4:
        raise InputError(f"x has {x.ndim} dimensions: use (batch, heads, length, dim)")
    if inv_freq.ndim != 1 or 2 * len(inv_freq) > x.shape[-1]:
        raise InputError(
            f"inv_freq has shape {tuple(inv_freq.shape)}: use at most {x.shape[-1] // 2} pairs, head_dim / 2"
        )
    if positions.dtype not in (torch.int32, torch.int64):
        raise InputError(f"positions are {positions.dtype}: use torch.int32 or torch.int64")
    if positions.shape not in (x.shape[2:3], (x.shape[0], x.shape[2])):
        shape = tuple(positions.shape)
        raise InputError(f"positions have shape {shape}: use ({x.shape[2]},) or ({x.shape[0]}, {x.shape[2]})")
