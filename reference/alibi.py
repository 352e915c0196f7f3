"""ALiBi: a bias that falls linearly with the distance of a key, at a slope for each head (chapter "position-bias")."""

from __future__ import annotations

import torch

from attnspec.reference.lengths import check
from attnspec.spec.errors import InputError


def slopes(heads: int) -> torch.Tensor:
    """Return the slopes of ALiBi, float64 (heads,), head 0 first.

    For n heads, n a power of two, head h has 2^(-8 (h + 1) / n). For other numbers, with n the largest power of two
    below: the n slopes of n heads, then every second one of 2 n heads, the first, the third and so on. Raises
    InputError for less than one head. Rule: `alibi.slopes`. Source: Press et al. 2022, section 3; its code, function
    `get_slopes`.
    """
    if heads < 1:
        raise InputError(f"{heads} heads: use 1 or more")
    n = 2 ** (heads.bit_length() - 1)  # the largest power of two that is no larger than heads
    of_n = 8 * (torch.arange(n).double() + 1) / n
    between = 8 * (2 * torch.arange(heads - n).double() + 1) / (2 * n)  # every second exponent of 2 n heads
    return 2.0 ** -torch.cat([of_n, between])


def distance(
    q_len: int,
    k_len: int,
    *,
    form: str = "symmetric",
    alignment: str = "upper_left",
    key_lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return how far each key lies from the diagonal, int64 (1 or batch, 1, q_len, k_len); a bias is minus slope times
    this.

    With offset 0 for the alignment `upper_left` and k_len - q_len, or key_lengths[batch] - q_len, for `lower_right`:

        symmetric: |i + offset - j|        signed: i + offset - j

    Raises InputError for another form or alignment and for lengths that do not fit. Rules: `alibi.form`,
    `alibi.offset`. Source: flash-attention, `flash_attn_func`, argument `alibi_slopes`.
    """
    end = torch.tensor([k_len]) if key_lengths is None else key_lengths
    if key_lengths is not None:
        check(key_lengths, len(key_lengths), k_len)
    offsets = {"upper_left": torch.zeros_like(end), "lower_right": end - q_len}
    if alignment not in offsets:
        raise InputError(f"alibi_alignment is {alignment!r}: use one of {', '.join(offsets)}")
    diagonal = torch.arange(q_len)[:, None] + offsets[alignment][:, None, None, None]  # (1 or batch, 1, q_len, 1)
    signed = diagonal - torch.arange(k_len)  # (1 or batch, 1, q_len, k_len)
    forms = {"symmetric": signed.abs(), "signed": signed}
    if form not in forms:
        raise InputError(f"alibi_form is {form!r}: use one of {', '.join(forms)}")
    return forms[form]


def bias(alibi_slopes: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """Return minus slope times distance, float64 (1 or batch, heads, q_len, k_len): an additive `attn_mask`.

    alibi_slopes: (heads,) or (batch, heads), of any floating dtype; distances: as from `distance`. Raises InputError
    where they do not fit. Rule: `alibi.bias`. Source: Press et al. 2022, section 3.
    """
    per_batch = check_slopes(alibi_slopes)  # (1 or batch, heads)
    if 1 not in (len(per_batch), len(distances)) and len(per_batch) != len(distances):
        raise InputError(f"alibi_slopes has batch {len(per_batch)} and key_lengths {len(distances)}: use the same")
    return -per_batch.double()[:, :, None, None] * distances


def of_scores(
    shape: tuple[int, int, int, int],
    alibi_slopes: torch.Tensor,
    *,
    form: str = "symmetric",
    alignment: str = "upper_left",
    key_lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what ALiBi adds to the scaled scores of a call, float64 (1 or batch, q_heads, q_len, k_len).

    shape: (batch, q_heads, q_len, k_len); alibi_slopes: (q_heads,) or (batch, q_heads); form to key_lengths: those of
    `distance`. Raises InputError where they do not fit. Rules: `alibi.bias`, `alibi.form`, `alibi.offset`,
    `alibi.shape`. Source: Press et al. 2022, section 3.
    """
    batch, heads, q_len, k_len = shape
    fitting_slopes(alibi_slopes, batch, heads)
    return bias(alibi_slopes, distance(q_len, k_len, form=form, alignment=alignment, key_lengths=key_lengths))


def slopes_backward(grad_bias: torch.Tensor, distances: torch.Tensor, alibi_slopes: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the slopes, of their shape: minus the sum of grad * distance over all that a slope
    reaches.

    grad_bias: gradient of the loss with respect to the scores or the bias, (batch, heads, q_len, k_len), as
    `attnspec.reference.backward.backward` gives it for an `attn_mask` of that shape. Rule: `alibi.gradient`.
    """
    per_slope = -(grad_bias.double() * distances).sum((2, 3))  # (batch, heads)
    summed: torch.Tensor = per_slope.sum_to_size(alibi_slopes.shape)
    return summed


def fitting_slopes(alibi_slopes: torch.Tensor, batch: int, heads: int) -> torch.Tensor:
    """Return the slopes of a call as (1 or batch, heads). Raises InputError for another shape or dtype. Rule:
    `alibi.shape`."""
    per_batch = check_slopes(alibi_slopes)
    if per_batch.shape[1] != heads or len(per_batch) not in (1, batch):
        raise InputError(f"alibi_slopes has shape {tuple(alibi_slopes.shape)}: use ({heads},) or ({batch}, {heads})")
    return per_batch


def check_slopes(alibi_slopes: torch.Tensor) -> torch.Tensor:
    """Return slopes as (1 or batch, heads). Raises InputError for another rank or dtype. Rule: `alibi.shape`."""
    if alibi_slopes.ndim not in (1, 2) or not alibi_slopes.dtype.is_floating_point:
        shape = tuple(alibi_slopes.shape)
        raise InputError(f"alibi_slopes is {alibi_slopes.dtype} {shape}: use floating (heads,) or (batch, heads)")
    return alibi_slopes if alibi_slopes.ndim == 2 else alibi_slopes[None]
