"""Attention by the kernels of flash.cu, forward and backward, as one operation with a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attnspec.implementations.cuda_flash.arguments import ADDITIVE_MASK, BOOL_MASK, NO_MASK, Arguments, arguments
from attnspec.implementations.cuda_flash.builds import WARPS, build_for
from attnspec.implementations.cuda_flash.launcher import Launcher

KEPT = ("query", "key", "value", "mask", "key_lengths", "output", "row_max", "row_sum")  # for the backward pass
FEW_ROWS, KEYS_OF_A_PART, MOST_PARTS = 16, 256, 32


@dataclass(frozen=True)
class Options:
    """What a call says beside its tensors. left, right: the window, the causal triangle included, -1 for no bound."""

    scale: float
    left: int
    right: int
    lower_right: bool
    splits: int


def splits_for(q_len: int, k_len: int) -> int:
    """Return over how many blocks the keys are split: more than one where there are few rows and many keys, as in
    decoding. It depends on the lengths alone, so that a row's bits are the same in any batch. Source: Dao et al. 2023,
    "Flash-Decoding for long-context inference"."""
    return 1 if q_len > FEW_ROWS else max(1, min(MOST_PARTS, -(-k_len // KEYS_OF_A_PART)))


class Flash(torch.autograd.Function):
    """Query, key, value, attn_mask of rank 4, key_lengths, options and a launcher give output and lse."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        key_lengths: torch.Tensor | None,
        options: Options,
        launcher: Launcher,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output in the query's dtype, and the lse in float32."""
        (batch, q_heads, q_len, _), value_dim = query.shape, value.shape[3]
        output = query.new_empty(batch, q_heads, q_len, value_dim)
        lse, row_max, row_sum = query.new_empty(3, batch, q_heads, q_len, dtype=torch.float32)
        kept = (query, key, value, attn_mask, key_lengths, output, row_max, row_sum)
        tensors: dict[str, torch.Tensor | None] = dict(zip(KEPT, kept, strict=True))
        if options.splits > 1:
            parts = (options.splits, batch, q_heads, q_len)
            tensors["part_output"] = query.new_empty(*parts, value_dim, dtype=torch.float32)
            tensors["part_max"], tensors["part_sum"] = query.new_empty(2, *parts, dtype=torch.float32)
        build = build_for(query.dtype, max(query.shape[3], value_dim))
        sizes = launcher.sizes(build)
        call = described(tensors | {"lse": lse}, options)
        rows = batch * q_heads * q_len
        if rows:
            grid = (batch * q_heads, -(-q_len // sizes.forward_rows), options.splits)
            launcher.launch(build, "attention_forward", grid, sizes.forward_bytes, call)
            if options.splits > 1:
                launcher.launch(build, "attention_merge", (-(-rows // WARPS), 1, 1), 0, call)
        ctx.save_for_backward(*kept)
        ctx.options, ctx.launcher, ctx.build, ctx.sizes = options, launcher, build, sizes
        return output, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor, grad_lse: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key, value and an additive mask, each in its argument's dtype."""
        query, key, value, attn_mask, _, _, row_max, _ = ctx.saved_tensors
        batch, q_heads, q_len, _ = query.shape
        grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)]
        wants_mask = attn_mask is not None and ctx.needs_input_grad[3]
        slots = (batch, q_heads, q_len, key.shape[2])
        grad_scores = torch.zeros(slots, device=query.device) if wants_mask else None
        tensors: dict[str, torch.Tensor | None] = {
            **dict(zip(KEPT, ctx.saved_tensors, strict=True)),
            "grad_output": grad_output,
            "grad_lse": grad_lse.contiguous(),
            "delta": torch.empty_like(row_max),
            "grad_query": grads[0],
            "grad_key": grads[1],
            "grad_value": grads[2],
            "grad_scores": grad_scores,
        }
        call = described(tensors, ctx.options)
        launcher, build, sizes = ctx.launcher, ctx.build, ctx.sizes
        rows, per_block, shared = batch * q_heads * q_len, sizes.backward_rows, sizes.backward_bytes
        if rows:
            launcher.launch(build, "attention_delta", (-(-rows // WARPS), 1, 1), 0, call)
            grid = (batch * q_heads, -(-q_len // per_block), 1)
            launcher.launch(build, "attention_backward_query", grid, shared, call)
        if key.shape[2]:
            grid = (key.shape[0] * key.shape[1], -(-key.shape[2] // per_block), 1)
            launcher.launch(build, "attention_backward_key_value", grid, shared, call)
        grad_mask = None if grad_scores is None else grad_scores.to(attn_mask.dtype)
        return grads[0], grads[1], grads[2], grad_mask, None, None, None


def described(tensors: dict[str, torch.Tensor | None], options: Options) -> Arguments:
    """Return the kernels' argument for tensors by name, of which query, key and value say the sizes."""
    query, key, value, mask = (tensors[name] for name in ("query", "key", "value", "mask"))
    assert query is not None
    assert key is not None
    assert value is not None
    integers = {
        "batch": query.shape[0],
        "q_heads": query.shape[1],
        "q_len": query.shape[2],
        "kv_batch": key.shape[0],
        "kv_heads": key.shape[1],
        "k_len": key.shape[2],
        "head_dim": query.shape[3],
        "value_dim": value.shape[3],
        "left": options.left,
        "right": options.right,
        "lower_right": int(options.lower_right),
        "mask_kind": NO_MASK if mask is None else BOOL_MASK if mask.dtype == torch.bool else ADDITIVE_MASK,
        "splits": options.splits,
    }
    return arguments(tensors, integers, options.scale)
