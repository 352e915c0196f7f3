"""Attention kernels for the accuracy bench: honest ones that round differently, and one with a step made coarse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnspec.conformance.budget import positions_of
from attnspec.reference import grouped_heads, masks
from attnspec.spec.call import Call

LOG2E = 1.4426950408889634
Round = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Prepared:
    """A call made ready for a hand-written kernel: keys expanded to the query heads, mask and window as `keep`, the
    mask as `bias`, with ALiBi's numbers in the working precision. sinks: (q_heads, 1, 1), in the working precision."""

    call: Call
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keep: torch.Tensor
    bias: torch.Tensor | None
    scale: float
    work: torch.dtype
    alignment: str = "upper_left"
    sinks: torch.Tensor | None = None

    @classmethod
    def of(cls, call: Call, alignment: str) -> Prepared:
        b, h, q_len, d = call.query.shape
        k, v = (grouped_heads.expand(x, h).expand(b, -1, -1, -1) for x in (call.key, call.value))
        shape = (b, h, q_len, k.shape[-2])
        mask, positions = call.attn_mask, positions_of(call, shape)
        work = torch.float64 if call.query.dtype == torch.float64 else torch.float32
        bias = None if mask is None or mask.dtype == torch.bool else masks.broadcast(mask, shape)
        if positions is not None:
            bias = positions.to(work) if bias is None else bias.to(work) + positions.to(work)
        return cls(
            call, call.query, k, v,
            masks.visible(shape, call.attn_mask, call.is_causal, alignment, window_size=call.window_size),
            bias,
            1 / math.sqrt(d) if call.scale is None else call.scale,
            work,
            alignment,
            None if call.sinks is None else call.sinks.to(work)[:, None, None],
        )  # fmt: skip

    def exact_bias(self, kind: type[np.floating]) -> np.ndarray | float:
        """Return what is added to the scores, in a type that holds it."""
        mask, positions = self.call.attn_mask, positions_of(self.call, tuple(self.keep.shape))
        given = [] if mask is None or mask.dtype == torch.bool else [masks.broadcast(mask, tuple(self.keep.shape))]
        given += [] if positions is None else [positions]
        return sum((x.double().numpy().astype(kind) for x in given), start=0.0)

    def float_mask(self) -> torch.Tensor:
        """Return bias, mask, window and causal triangle as one additive mask, in the storage dtype where there are no
        slopes."""
        bias = torch.zeros(self.keep.shape, dtype=self.q.dtype) if self.bias is None else self.bias
        return bias.masked_fill(~self.keep, -torch.inf)

    def capped(self, s: torch.Tensor, tanh: Round = torch.tanh) -> torch.Tensor:
        """Return scaled scores under the cap, each step in their dtype."""
        return s if self.call.softcap is None else tanh(s / self.call.softcap) * self.call.softcap

    def softmax(self, s: torch.Tensor) -> torch.Tensor:
        """Return the weights of masked scores, the sink taking its share; 0 in a row that sees nothing."""
        if self.sinks is None:
            return s.softmax(-1).nan_to_num(0.0)
        sink = self.sinks.to(s.dtype).expand(*s.shape[:-1], 1)
        return torch.cat([s, sink], -1).softmax(-1)[..., :-1].nan_to_num(0.0)

    def logsumexp(self, s: torch.Tensor) -> torch.Tensor:
        """Return the lse of masked scores, with the sink."""
        lse = torch.logsumexp(s.to(self.work), -1)
        return lse if self.sinks is None else torch.logaddexp(lse, self.sinks[..., 0].expand_as(lse))


def same(x: torch.Tensor) -> torch.Tensor:
    """Return the argument."""
    return x


def through(dtype: torch.dtype) -> Round:
    """Return what rounds to `dtype` and comes back."""
    return lambda x: x.to(dtype).to(x.dtype)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Return float32 rounded to the 11 significant bits of TF32."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def cubic_exp2(x: torch.Tensor) -> torch.Tensor:
    """Return 2^x by a cubic on [0, 1), as fast 16-bit kernels do; relative error 8.7e-5."""
    whole = x.clamp_min(-126.0).floor()
    f = x.clamp_min(-126.0) - whole
    value = 1 + f * (0.69511634 + f * (0.22764499 + f * 0.07706624))
    return torch.where(x < -126, 0.0, torch.ldexp(value, whole.int()))


def by_exponentials(x: torch.Tensor) -> torch.Tensor:
    """Return tanh by two exponentials."""
    x = x.clamp(-20.0, 20.0)  # beyond it tanh is 1 in float64
    return (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))


def by_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return tanh by a logistic function."""
    return 2 * torch.sigmoid(2 * x) - 1


def fast_tanh(x: torch.Tensor) -> torch.Tensor:
    """Return tanh with a relative error of up to 2^-11 that wanders with x, as the hardware's has."""
    return torch.tanh(x) * (1 + 2.0**-11 * torch.sin(1000 * x))


@dataclass(frozen=True)
class Tiled:
    """Online softmax over tiles of keys, float32 (float64) throughout but for what its fields round."""

    tile: int = 64
    weights: Round | None = None  # None: the storage dtype
    accumulator: Round = same
    scores: Round = same
    inputs: Round = same
    exp2: Round = torch.exp2
    tanh: Round = torch.tanh
    log2e: float = LOG2E
    wide_output: bool = False

    def __call__(self, p: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (x.to(p.work) for x in (p.q, p.k, p.v))
        q, k = self.inputs(q), self.inputs(k)
        round_weights = self.weights or through(p.q.dtype)
        top = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=p.work)
        if p.sinks is not None:
            top = p.sinks.expand_as(top)
        total = torch.where(top == -torch.inf, 0.0, torch.ones_like(top))
        acc = torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=p.work)
        for j in range(0, k.shape[-2], self.tile):
            part = slice(j, j + self.tile)
            s = self.scores((q @ k[..., part, :].transpose(-1, -2)) * p.scale)
            s = p.capped(s, self.tanh)
            s = s if p.bias is None else s + p.bias[..., part].to(p.work)
            s = s.masked_fill(~p.keep[..., part], -torch.inf)
            new_top = torch.maximum(top, s.amax(-1, keepdim=True))
            safe = torch.where(new_top == -torch.inf, 0.0, new_top)
            e = self.exp2((s - safe) * self.log2e)
            rescale = torch.exp2((top - safe) * self.log2e)
            total = total * rescale + e.sum(-1, keepdim=True)
            acc = self.accumulator(acc * rescale + round_weights(e) @ v[..., part, :])
            top = new_top
        output = torch.where(total > 0, acc / torch.where(total > 0, total, 1.0), 0.0)
        return output if self.wide_output else output.to(p.q.dtype), (top + torch.log(total)).squeeze(-1)


def split(p: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
    """Four runs over a quarter of the keys each, merged by their lse: flash decoding. The sink is a part of its own."""
    n = p.k.shape[-2]
    ends = sorted({n * i // 4 for i in range(5)})
    parts = []
    for a, b in itertools.pairwise(ends):
        bias = None if p.bias is None else p.bias[..., a:b]
        piece = Prepared(p.call, p.q, p.k[..., a:b, :], p.v[..., a:b, :], p.keep[..., a:b], bias, p.scale, p.work)
        parts.append(Tiled(wide_output=True)(piece))
    if p.sinks is not None:
        output, lse = parts[0]
        parts.append((torch.zeros_like(output), p.sinks[..., 0].expand_as(lse)))
    lses = torch.stack([lse for _, lse in parts])
    top = lses.amax(0)
    weights = torch.exp(lses - torch.where(top == -torch.inf, 0.0, top))[..., None]
    outputs = torch.stack([output for output, _ in parts])
    total = weights.sum(0)
    output = torch.where(total > 0, (weights * outputs).sum(0) / torch.where(total > 0, total, 1.0), 0.0)
    return output.to(p.q.dtype), top + torch.log(total.squeeze(-1))


def grouped(p: Prepared) -> tuple[torch.Tensor, None]:
    """Grouped heads without expanding the keys; normalised weights, rounded to the storage dtype, then P V."""
    b, h, q_len, d = p.q.shape
    kv = p.call.key.shape[1]
    k, v = (x.to(p.work).expand(b, -1, -1, -1) for x in (p.call.key, p.call.value))
    q = (p.q.to(p.work) * p.scale).view(b, kv, h // kv, q_len, d)
    s = p.capped(torch.einsum("bhgqd,bhkd->bhgqk", q, k).reshape(b, h, q_len, -1)) + p.float_mask().to(p.work)
    weights = through(p.q.dtype)(p.softmax(s)).view(b, kv, h // kv, q_len, -1)
    return torch.einsum("bhgqk,bhkd->bhgqd", weights, v).reshape(b, h, q_len, -1).to(p.q.dtype), None


def math_sdpa(p: Prepared) -> tuple[torch.Tensor, None]:
    """torch's unfused kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(p.q, p.k, p.v, p.float_mask(), scale=p.scale), None


def flash_sdpa(p: Prepared) -> tuple[torch.Tensor, torch.Tensor | None]:
    """torch's fused CPU kernel; it needs value_dim = head_dim, so the values are padded or cut into slices."""
    d, width = p.q.shape[-1], p.v.shape[-1]
    values = F.pad(p.v, (0, -width % d)).split(d, -1)  # type: ignore[no-untyped-call]
    mask = None if p.bias is None and bool(p.keep.all()) else p.float_mask()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        outputs = [F.scaled_dot_product_attention(p.q, p.k, v, mask, scale=p.scale) for v in values]
    return torch.cat(outputs, -1)[..., :width], None


def eager(p: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores, their sum with the mask, and weights stored in the storage dtype."""
    s = (p.capped(p.q @ p.k.transpose(-1, -2) * p.scale) + p.float_mask()).to(p.q.dtype)
    return p.softmax(s) @ p.v, p.logsumexp(s)


def eager_prescaled(p: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, with the scale on the query."""
    s = (p.capped((p.q * p.scale) @ p.k.transpose(-1, -2)) + p.float_mask()).to(p.q.dtype)
    return p.softmax(s) @ p.v, p.logsumexp(s)


Kernel = Callable[[Prepared], tuple[torch.Tensor, torch.Tensor | None]]
FUSED: dict[str, Kernel] = {
    "torch math": math_sdpa,
    "torch flash": flash_sdpa,
    "grouped": grouped,
    "tiled 16": Tiled(16),
    "tiled 64": Tiled(64),
    "tiled 128": Tiled(128),
    "split": split,
}
NARROW: dict[str, Kernel] = {"tiled, cubic exp2": Tiled(64, exp2=cubic_exp2)}
STEPWISE: dict[str, Kernel] = {"key by key": Tiled(1)}
EAGER: dict[str, Kernel] = {"eager": eager, "eager, q scaled": eager_prescaled}
WIDE: dict[str, Kernel] = {f"tiled {n}, float32 out": Tiled(n, wide_output=True) for n in (16, 64, 128)}
CAPPED: dict[str, Kernel] = {
    "tiled, tanh by exponentials": Tiled(64, tanh=by_exponentials),
    "tiled, tanh by a sigmoid": Tiled(64, tanh=by_sigmoid),
}
CAPPED_NARROW: dict[str, Kernel] = {"tiled, fast tanh": Tiled(64, tanh=fast_tanh)}
OF_TORCH = ("torch math", "torch flash")  # no softcap, no sinks, and a bias in the storage dtype alone
FAULTY: dict[str, Kernel] = {
    "scores in bfloat16": Tiled(64, scores=through(torch.bfloat16)),
    "scores in float16": Tiled(64, scores=through(torch.float16)),
    "P V summed in bfloat16, tile 16": Tiled(16, accumulator=through(torch.bfloat16)),
    "P V summed in bfloat16, tile 64": Tiled(64, accumulator=through(torch.bfloat16)),
    "P V summed in bfloat16, key by key": Tiled(1, accumulator=through(torch.bfloat16)),
    "P V summed in float16, tile 64": Tiled(64, accumulator=through(torch.float16)),
    "weights in float8 e4m3": Tiled(64, weights=through(torch.float8_e4m3fn)),
    "log2(e) = 1.442": Tiled(64, log2e=1.442),
    "log2(e) = 1.4427": Tiled(64, log2e=1.4427),
    "weights in bfloat16": Tiled(64, weights=through(torch.bfloat16)),
    "q and k in bfloat16": Tiled(64, inputs=through(torch.bfloat16)),
    "q and k in TF32": Tiled(64, inputs=tf32),
}
