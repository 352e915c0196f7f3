"""Backward passes for the gradient bench: honest ones that round differently, and some with one step made coarse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from accuracy_kernels import (
    LOG2E,
    Prepared,
    Round,
    Tiled,
    by_exponentials,
    by_sigmoid,
    cubic_exp2,
    fast_tanh,
    math_sdpa,
    same,
    through,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.spec.call import Call

Gradients = dict[str, torch.Tensor]  # by the name of the input: query, key, value, attn_mask, sinks


@dataclass(frozen=True)
class Pass:
    """One backward pass: the call, and what comes back to its output and lse (None for 0)."""

    call: Call
    alignment: str
    grad_output: torch.Tensor
    grad_lse: torch.Tensor | None = None


def has_bias(call: Call) -> bool:
    """Whether the call has an additive mask, which has a gradient."""
    return call.attn_mask is not None and call.attn_mask.is_floating_point()


def of_inputs(call: Call, grads: Gradients) -> Gradients:
    """Return gradients of expanded heads (batch, q_heads, ...) as those of the call's tensors: each is stored first.

    That is how flash-attention sums the heads of a group, and how autograd undoes `repeat_interleave`.
    """
    kv_batch, kv_heads = call.key.shape[:2]
    summed = dict(grads)
    for name in ("key", "value"):
        x = grads[name].to(call.query.dtype)
        x = x.view(x.shape[0], kv_heads, -1, *x.shape[2:]).sum(2)
        summed[name] = x if x.shape[0] == kv_batch else x.sum(0, keepdim=True)
    return {name: x.to(call.query.dtype) for name, x in summed.items()}


@dataclass(frozen=True)
class TiledBackward:
    """Flash-attention's backward pass over tiles of keys and rows, float32 (float64) but for what its fields round.

    weights, dscores: None is the storage dtype. narrow_heads: False sums the heads of a group before they are stored.
    """

    tile: int = 64
    row_tile: int = 1 << 20
    weights: Round | None = None
    dscores: Round | None = None
    products: Round = same
    scores: Round = same
    lse: Round = same
    delta: Round = same
    accumulator: Round = same
    exp2: Round = torch.exp2
    tanh: Round = torch.tanh
    has_delta: bool = True
    has_scale: bool = True
    narrow_heads: bool = True

    def __call__(self, b: Pass) -> Gradients:
        p = Prepared.of(b.call, b.alignment)
        stored, lse = Tiled(self.tile, exp2=self.exp2, tanh=self.tanh)(p)
        lse = self.lse(torch.where(lse == -torch.inf, torch.inf, lse))[..., None]  # P = 0 in an empty row
        q, k, v, grad_output = (x.to(p.work) for x in (p.q, p.k, p.v, b.grad_output))
        delta = self.delta((grad_output * stored.to(p.work)).sum(-1, keepdim=True))
        delta = delta if self.has_delta else torch.zeros_like(delta)
        delta = delta if b.grad_lse is None else delta - b.grad_lse[..., None].to(p.work)
        weights = self.weights or through(p.q.dtype)
        dscores = self.dscores or through(p.q.dtype)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        bias = torch.zeros(p.keep.shape, dtype=p.work)
        for j in range(0, k.shape[-2], self.tile):
            keys = slice(j, j + self.tile)
            for i in range(0, q.shape[-2], self.row_tile):
                rows = slice(i, i + self.row_tile)
                s = self.scores((q[..., rows, :] @ k[..., keys, :].mT) * p.scale)
                slope = 1.0
                if p.call.softcap is not None:
                    capped = self.tanh(s / p.call.softcap)
                    s, slope = p.call.softcap * capped, 1 - capped**2
                s = s if p.bias is None else s + p.bias[..., rows, keys].to(p.work)
                s = s.masked_fill(~p.keep[..., rows, keys], -torch.inf)
                weight = self.exp2((s - lse[..., rows, :]) * LOG2E)
                dp = self.products(grad_output[..., rows, :] @ v[..., keys, :].mT)
                above = weight * (dp - delta[..., rows, :])  # the gradient of the score above the cap
                bias[..., rows, keys] = dscores(above)
                ds = dscores(above * slope)
                dv[..., keys, :] = self.accumulator(dv[..., keys, :] + weights(weight).mT @ grad_output[..., rows, :])
                dk[..., keys, :] = self.accumulator(dk[..., keys, :] + ds.mT @ q[..., rows, :])
                dq[..., rows, :] = self.accumulator(dq[..., rows, :] + ds @ k[..., keys, :])
        scale = p.scale if self.has_scale else 1.0
        grads = {"query": dq * scale, "key": dk * scale, "value": dv}
        if has_bias(b.call):
            grads["attn_mask"] = bias.sum_to_size(b.call.attn_mask.shape)
        if p.sinks is not None:
            grads["sinks"] = -(torch.exp(p.sinks - lse) * delta).sum((0, 2, 3))
        if not self.narrow_heads:
            heads = (b.call.key.shape[1], p.q.shape[1] // b.call.key.shape[1])
            for name in ("key", "value"):
                x = grads[name].unflatten(1, heads).sum(2)
                grads[name] = x if b.call.key.shape[0] == x.shape[0] else x.sum(0, keepdim=True)
            return {name: x.to(p.q.dtype) for name, x in grads.items()}
        return of_inputs(b.call, grads)


def by_autograd(forward: Callable[[Prepared], torch.Tensor], mask_too: bool = True) -> Callable[[Pass], Gradients]:
    """Return the backward pass that torch's autograd makes of a kernel."""

    def backward(b: Pass) -> Gradients:
        leaves = {name: getattr(b.call, name).clone().requires_grad_() for name in ("query", "key", "value")}
        if mask_too and has_bias(b.call):
            leaves["attn_mask"] = b.call.attn_mask.clone().requires_grad_()
        if b.call.sinks is not None:
            leaves["sinks"] = b.call.sinks.clone().requires_grad_()
        forward(Prepared.of(replace(b.call, **leaves), b.alignment)).backward(b.grad_output)
        return {name: x.grad for name, x in leaves.items() if x.grad is not None}

    return backward


def safe_weights(p: Prepared, scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax of scores over the keys that are kept, with the sink, 0 in a row that keeps none."""
    if p.sinks is not None:
        return p.softmax(scores.masked_fill(~p.keep, -torch.inf))
    empty = ~p.keep.any(-1, keepdim=True)
    return scores.masked_fill(~p.keep, -torch.inf).masked_fill(empty, 0.0).softmax(-1) * p.keep


def wide(p: Prepared) -> torch.Tensor:
    """Float32 (float64) from the first step to the last."""
    q, k, v = (x.to(p.work) for x in (p.q, p.k, p.v))
    s = p.capped(q @ k.mT * p.scale)
    return (safe_weights(p, s if p.bias is None else s + p.bias.to(p.work)) @ v).to(p.q.dtype)


def eager(p: Prepared) -> torch.Tensor:
    """Every step stored in the storage dtype."""
    s = p.capped(p.q @ p.k.mT * p.scale)
    return safe_weights(p, s if p.bias is None else (s + p.bias).to(p.q.dtype)) @ p.v


def eager_prescaled(p: Prepared) -> torch.Tensor:
    """The same, with the scale on the query."""
    s = p.capped((p.q * p.scale) @ p.k.mT)
    return safe_weights(p, s if p.bias is None else (s + p.bias).to(p.q.dtype)) @ p.v


def flash(p: Prepared) -> torch.Tensor:
    """torch's fused CPU kernel; it needs value_dim = head_dim, so the narrower ones are padded."""
    d, width = p.q.shape[-1], p.v.shape[-1]
    q, k = (F.pad(x, (0, max(0, width - d))) for x in (p.q, p.k))
    v = F.pad(p.v, (0, max(0, d - width)))
    mask = None if p.bias is None and bool(p.keep.all()) else p.float_mask()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, mask, scale=p.scale)[..., :width]


Backwards = dict[str, Callable[[Pass], Gradients]]
TILED: Backwards = {
    "tiled 16": TiledBackward(16),
    "tiled 64": TiledBackward(64, 64),
    "tiled 128, heads in float32": TiledBackward(128, 128, narrow_heads=False),
}
NARROW: Backwards = {"tiled, cubic exp2": TiledBackward(64, exp2=cubic_exp2)}
CAPPED: Backwards = {
    "tiled, tanh by exponentials": TiledBackward(64, 64, tanh=by_exponentials),
    "tiled, tanh by a sigmoid": TiledBackward(64, 64, tanh=by_sigmoid),
}
CAPPED_NARROW: Backwards = {"tiled, fast tanh": TiledBackward(64, 64, tanh=fast_tanh)}
AUTOGRAD: Backwards = {
    "torch math": by_autograd(lambda p: math_sdpa(p)[0]),
    "autograd in float32": by_autograd(wide),
}
FLASH: Backwards = {"torch flash": by_autograd(flash, mask_too=False)}  # in 16 bits it adds up what it has stored
EAGER: Backwards = {"eager": by_autograd(eager), "eager, q scaled": by_autograd(eager_prescaled)}
FAULTY: Backwards = {
    "dQ, dK, dV summed in bfloat16, tile 16": TiledBackward(16, 16, accumulator=through(torch.bfloat16)),
    "dQ, dK, dV summed in bfloat16, tile 64": TiledBackward(64, 64, accumulator=through(torch.bfloat16)),
    "dQ, dK, dV summed in float16, tile 16": TiledBackward(16, 16, accumulator=through(torch.float16)),
    "torch flash": FLASH["torch flash"],
    "no delta": TiledBackward(has_delta=False),
    "no scale": TiledBackward(has_scale=False),
    "dS in float8 e4m3": TiledBackward(dscores=through(torch.float8_e4m3fn)),
    "P in float8 e4m3": TiledBackward(weights=through(torch.float8_e4m3fn)),
    "dP in bfloat16": TiledBackward(products=through(torch.bfloat16)),
    "scores in bfloat16": TiledBackward(scores=through(torch.bfloat16)),
    "lse in bfloat16": TiledBackward(lse=through(torch.bfloat16)),
    "delta in bfloat16": TiledBackward(delta=through(torch.bfloat16)),
    "delta in float16": TiledBackward(delta=through(torch.float16)),
    "P and dS in bfloat16": TiledBackward(weights=through(torch.bfloat16), dscores=through(torch.bfloat16)),
}
