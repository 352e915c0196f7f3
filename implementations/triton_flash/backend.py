"""The backend: a call of the spec, checked and handed to the kernels, as one operation of autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from attnspec.implementations.torch_eager import broadcast_mask, check_call, check_sinks, check_slopes
from attnspec.implementations.triton_flash.launch import INTERPRETED
from attnspec.implementations.triton_flash.passes import Sequences, backward_pass, forward_pass
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_DIM = 256
ABSENT = ("dropout_p", "grad_alibi_slopes")
DEVICE = "cpu" if INTERPRETED else "cuda"


class Unsupported(InputError, NotImplementedError):
    """What the kernels do not have, though the spec does: a refusal."""


class Flash(torch.autograd.Function):
    """The two passes as one operation: what may have a gradient, and the call, give output and lse."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
        call: Sequences,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output in the query's dtype, and the lse in float32."""
        output, lse = forward_pass(call)
        ctx.save_for_backward(query, key, value, attn_mask, sinks, output, lse)
        ctx.call = call
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key, value, an additive mask and sinks, each in its argument's dtype."""
        *given, output, lse = ctx.saved_tensors
        needs = ctx.needs_input_grad
        needed = (needs[0], needs[1] or needs[2], needs[3])
        found = backward_pass(ctx.call, output, lse, grads[0], grads[1], needed)
        return *(fit(g, x) if need else None for g, x, need in zip(found, given, needs[:5], strict=True)), None


def fit(gradient: torch.Tensor | None, given: torch.Tensor | None) -> torch.Tensor | None:
    """Return a gradient in the dtype of its argument, and summed over what read it more than once."""
    if gradient is None or given is None:
        return None
    return gradient.sum_to_size(given.shape).to(given.dtype)


class TritonFlash:
    """FlashAttention in Triton; accuracy class fused. tile: rows and keys of a tile, by default the best there is."""

    def __init__(
        self,
        name: str = "triton_flash",
        causal_alignment: str = "upper_left",
        tile: tuple[int, int] | None = None,
        split_keys: int | None = None,
    ) -> None:
        self.name = name
        self.tile = tile
        self.split_keys = split_keys
        self.capabilities = Capabilities(
            features=tuple(feature for feature in FEATURES if feature not in ABSENT),
            dtypes=("float32", "float16", "bfloat16"),
            head_dims=(1, LARGEST_DIM),
            causal_alignment=causal_alignment,
            devices=(DEVICE,),
            cost="emulated" if INTERPRETED else "native",
        )
        if INTERPRETED:
            self.hardware = "triton interpreter"

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        key_lengths: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        window_size: tuple[int, int] | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return attention computed in tiles by the Triton kernels, and the lse where asked for.

        Arguments: `attnspec.spec.call.Call`, in float32, float16 or bfloat16, of any strides, head dims up to 256.
        Returns output (batch, q_heads, q_len, value_dim) of the query's dtype, and lse (batch, q_heads, q_len) in
        float32. Both have gradients of query, key, value, an additive mask and sinks. Extra memory: O(L); the gradient
        of an additive mask takes one float32 number for each score. Raises InputError where the tensors do not fit,
        are of another dtype, on another device or too wide. Rules: `attention.output`, `flash.memory`,
        `flash.lse-recompute`. Source: Dao 2023, algorithms 1 and 2.
        """
        check_call(query, key, value, attn_mask, enable_gqa, key_lengths, window_size, softcap)
        check_sinks(sinks, query.shape[1])
        check_tensors(query, key, value, attn_mask, key_lengths, sinks, alibi_slopes)
        batch, q_heads, q_len, _ = query.shape
        mask = (
            None if attn_mask is None else broadcast_mask(attn_mask, torch.Size((batch, q_heads, q_len, key.shape[2])))
        )
        left, right = band(window_size, is_causal, q_len + key.shape[2])
        call = Sequences(
            query=query,
            key=key.expand(batch, -1, -1, -1),
            value=value.expand(batch, -1, -1, -1),
            q_len=q_len,
            k_len=key.shape[2],
            attn_mask=mask,
            alibi_slopes=None if alibi_slopes is None else slopes_of(alibi_slopes, batch, q_heads),
            sinks=sinks,
            key_lengths=key_lengths,
            left=left,
            right=right,
            lower_right=self.capabilities.causal_alignment == "lower_right",
            scale=scale,
            softcap=softcap,
            tile=self.tile,
            split_keys=self.split_keys,
        )
        output, lse = differentiable(query, key, value, attn_mask, sinks, call)
        return (output, lse) if return_lse else output


def differentiable(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    call: Sequences,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and lse of a call, with gradients of the tensors that it was made of."""
    names = ("query", "key", "value", "attn_mask", "sinks", "alibi_slopes")
    tensors = {name: x.detach() for name in names if (x := getattr(call, name)) is not None}
    output, lse = Flash.apply(query, key, value, attn_mask, sinks, replace(call, **tensors))  # type: ignore[no-untyped-call]
    return output, lse


def band(window_size: tuple[int, int] | None, is_causal: bool, tokens: int) -> tuple[int | None, int | None]:
    """Return how many keys before and after its diagonal a row sees, None for all.

    tokens: as many queries and keys as there are, beyond which no window reaches: the kernels add in 32 bits. Rules:
    `window.causal`, `window.unbounded`.
    """
    left, right = (None if side == -1 else min(side, tokens) for side in window_size or (-1, -1))
    return left, 0 if is_causal else right


def slopes_of(alibi_slopes: torch.Tensor, batch: int, q_heads: int) -> torch.Tensor:
    """Return the slopes as float32 (batch, q_heads). Raises InputError. Rule: `alibi.shape`."""
    check_slopes(alibi_slopes, batch, q_heads)
    if alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise InputError("alibi_slopes requires a gradient, which this kernel does not give: detach it")
    return alibi_slopes.float().expand(batch, q_heads)


def check_heads(
    shapes: str, tensors: tuple[torch.Tensor, ...], query: Sequence[int], key: Sequence[int], value: Sequence[int]
) -> None:
    """Raise InputError unless tensors without a batch fit each other. query: heads and dim; key, value: their shapes,
    heads and dim last. Rules: `notation.dtypes`, `grouped.heads-divide`."""
    if len({x.dtype for x in tensors}) > 1:
        raise InputError(f"{' and '.join(str(x.dtype) for x in tensors)}: use one dtype")
    if key[:-1] != value[:-1] or query[-1] != key[-1]:
        raise InputError(f"{shapes}: key and value differ in length or heads, or query and key in head_dim")
    if key[-2] == 0 or query[-2] % key[-2]:
        raise InputError(f"{shapes}: use as many key heads as query heads, or a divisor")


def check_tensors(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Raise InputError for a head dim or a device, Unsupported for a dtype, that the kernels do not have. Rule:
    `contract.refusal`."""
    if query.dtype not in DTYPES:
        raise Unsupported(f"query is {query.dtype}: use float32, float16 or bfloat16")
    if not (1 <= query.shape[-1] <= LARGEST_DIM and 1 <= value.shape[-1] <= LARGEST_DIM):
        raise InputError(f"head_dim {query.shape[-1]}, value_dim {value.shape[-1]}: use 1 to {LARGEST_DIM}")
    devices = {x.device for x in (query, key, value, *others) if x is not None}
    if len(devices) > 1:
        raise InputError(f"tensors on {' and '.join(sorted(map(str, devices)))}: use one device")
    if query.device.type != DEVICE:
        runs = "the Triton interpreter runs on cpu" if INTERPRETED else "the compiled kernels run on cuda"
        raise InputError(f"query is on {query.device}: {runs}")
