"""A block of query rows and what the error terms need to know of it: spreads, ties, partial sums.

Shapes: (heads, rows, k_len) for a number a key, (heads, rows, value_dim) for a number an output, float64 throughout.
Names are those of the chapter "accuracy": s scaled scores, z the same with the bias, p weights, v values, o output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attnspec.reference import softcap as caps
from attnspec.reference.softmax import lse, softmax

PATH_BLOCKS = 32  # points at which the partial sums of P V are known; between them they are bounded
PATH_ELEMENTS = 2**16  # numbers at a time, so that a processor's cache holds them
TIES_SAMPLE = 512  # keys in which equal scores are counted
CANCELLED = 2.0**-50  # a difference of float64 numbers below this part of them is noise, and the part is its bound
TIES_GAP = 2.0**-40  # scores nearer than this, relative to the largest, are equal: above the noise of float64


@dataclass(frozen=True)
class Arithmetic:
    """What a kernel rounds, and how coarsely. Unit roundoffs, 0 where nothing is rounded.

    work: of scores, exponentials and sums. output: of the stored output. scores, weights: of scores and weights that
    pass through the storage dtype. tanh: relative error of one tanh. weights_step: half the distance of stored weights
    near 0; weights_lost: stored weights below it may become 0. exponential: relative error of one exponential. lse:
    what the errors of the exponentials add to the lse. drifts: the sum P V is bounded for any correlation of its
    rounding errors. flushed: intermediates below it may become 0. tiny: what the store of a number near 0 may be off
    by.
    """

    work: float
    output: float
    scores: float
    weights: float
    tanh: float
    weights_step: float
    weights_lost: float
    exponential: float
    lse: float
    drifts: bool
    flushed: float
    tiny: float


@dataclass(frozen=True)
class Rows:
    """A block of query rows, float64. Hidden slots hold 0.

    s, y, z, p: (heads, rows, k_len) scaled scores, the same with the cap, those with the bias, weights. slope: of y
    by s, 1 without a cap; softcap: 0 for none. v: (heads, k_len, value_dim) and o:
    (heads, rows, value_dim), both divided by `unit`, (heads, 1, 1), so that their squares stay finite. norm: (heads,
    rows, k_len) |scale| sqrt(sum_d q_d^2 k_jd^2). top, lse, count: (heads, rows, 1) largest z, log-sum-exp, number of
    visible keys.
    """

    s: torch.Tensor
    y: torch.Tensor
    slope: torch.Tensor
    z: torch.Tensor
    p: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    norm: torch.Tensor
    unit: torch.Tensor
    top: torch.Tensor
    lse: torch.Tensor
    count: torch.Tensor
    biased: bool
    scale: float
    head_dim: int
    arithmetic: Arithmetic
    softcap: float = 0.0

    @classmethod
    def of(
        cls,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        visible: torch.Tensor,
        scale: float,
        arithmetic: Arithmetic,
        softcap: float | None = None,
    ) -> Rows:
        """Return the block of query (heads, rows, head_dim) over key (heads, k_len, head_dim) and value (heads, k_len,
        value_dim), all finite float64, with bias and visible (heads, rows, k_len)."""
        s = scale * (query @ key.transpose(-1, -2))
        y = caps.apply(s, softcap)
        z = y if bias is None else y + bias
        p = softmax(z, visible)
        log_sum = lse(z, visible)[..., None]
        top = torch.where(visible, z, -torch.inf).amax(-1, keepdim=True)
        empty = top == -torch.inf
        norm = abs(scale) * torch.sqrt(query**2 @ (key**2).transpose(-1, -2))
        v = torch.where(visible.any(-2)[..., None], value, 0.0)  # a hidden value may be so large that the others vanish
        unit = v.abs().amax((-1, -2), keepdim=True)
        unit = torch.where(unit > 0, unit, 1.0)
        v = v / unit
        return cls(
            s=torch.where(visible, s, 0.0),
            y=torch.where(visible, y, 0.0),
            slope=caps.slope(s, softcap) if softcap else torch.ones(()).double(),
            z=torch.where(visible, z, 0.0),
            p=p,
            v=v,
            o=p @ v,
            norm=torch.where(visible, norm, 0.0),
            unit=unit,
            top=torch.where(empty, 0.0, top),
            lse=torch.where(empty, 0.0, log_sum),
            count=visible.sum(-1, keepdim=True, dtype=torch.float64),
            biased=bias is not None,
            scale=scale,
            head_dim=query.shape[-1],
            arithmetic=arithmetic,
            softcap=softcap or 0.0,
        )


def deviation(rows: Rows) -> torch.Tensor:
    """Return sqrt(sum_j p_j (v_j - o)^2), (heads, rows, value_dim); sum_j p_j |v_j - o| is never above it."""
    square = rows.p @ rows.v**2
    return torch.sqrt(torch.maximum(square - rows.o**2, CANCELLED * square))


def spread(rows: Rows, w: torch.Tensor) -> torch.Tensor:
    """Return sqrt(sum_j w_j^2 (v_j - o)^2), (heads, rows, value_dim): the size of a random sum of w_j (v_j - o)."""
    w2 = w**2
    square, cross, total = w2 @ rows.v**2, rows.o * (w2 @ rows.v), rows.o**2 * w2.sum(-1, keepdim=True)
    return torch.sqrt(torch.maximum(square - 2 * cross + total, CANCELLED * (square + total)))


def covariance(rows: Rows, x: torch.Tensor) -> torch.Tensor:
    """Return sum_j p_j x_j (v_j - o), (heads, rows, value_dim): the derivative of o by a common factor on x."""
    moved = rows.p * x
    return moved @ rows.v - moved.sum(-1, keepdim=True) * rows.o


def score_ties(rows: Rows) -> torch.Tensor:
    """Return how many visible keys of a row share one score, at the most and at least 1, (heads, rows, 1).

    Beyond `TIES_SAMPLE` keys it is counted in a sample of them, drawn by a fixed seed, and scaled up.
    """
    z = torch.where(rows.p > 0, rows.z, torch.nan)  # NaN equals nothing
    k_len = z.shape[-1]
    if k_len > TIES_SAMPLE:
        chosen = torch.randperm(k_len, generator=torch.Generator().manual_seed(0))[:TIES_SAMPLE]
        z = z[..., chosen]
    gap = TIES_GAP * (1 + rows.top.abs())
    ties = longest_run(z.sort(-1).values, gap)
    return torch.where(ties > 1, ties * max(1.0, k_len / TIES_SAMPLE), 1.0)


def value_ties(rows: Rows) -> torch.Tensor:
    """Return how many keys share one value other than 0, at the most and at least 1, (heads, 1, value_dim)."""
    v = torch.where(rows.v != 0, rows.v, torch.nan).transpose(-1, -2)  # adding 0 rounds nothing
    return longest_run(v.sort(-1).values, torch.zeros(())).transpose(-1, -2)


def longest_run(ordered: torch.Tensor, gap: torch.Tensor) -> torch.Tensor:
    """Return the length of the longest run of neighbours no further apart than `gap`, (..., n) -> (..., 1) float64."""
    place = torch.arange(ordered.shape[-1]).expand(ordered.shape)
    breaks = torch.ones(ordered.shape, dtype=torch.bool)
    breaks[..., 1:] = ~(ordered.diff(dim=-1) <= gap)  # NaN breaks
    start = torch.where(breaks, place, 0).cummax(-1).values
    return ((place - start).amax(-1, keepdim=True) + 1).double()


def partial_sums(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the range of the partial sums of P V, and sum_j p_j |v_j|, both (heads, rows, value_dim).

    The range is max - min over i of T_i = sum_{j <= i} p_j v_j, T_0 = 0: no sum over neighbouring keys is larger. T is
    known at the ends of `PATH_BLOCKS` blocks; inside one it strays from their mean by at most half of sum |p_j v_j|.
    """
    heads, count, k_len = rows.p.shape
    size = -(-k_len // PATH_BLOCKS)
    blocks = -(-k_len // size)
    p = F.pad(rows.p, (0, blocks * size - k_len)).view(heads, count, blocks, size).transpose(1, 2)
    v = F.pad(rows.v, (0, 0, 0, blocks * size - k_len)).view(heads, blocks, size, -1)
    few = max(1, PATH_ELEMENTS // (heads * blocks * v.shape[-1]))  # rows at a time
    paths, masses = zip(*(_path(part, v) for part in torch.split(p, few, dim=2)), strict=True)
    return torch.cat(paths, 1), torch.cat(masses, 1)


def _path(p: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `partial_sums` does, of p (heads, blocks, rows, size) and v (heads, blocks, size, value_dim)."""
    step, half = p @ v, p @ v.abs() / 2  # (heads, blocks, rows, value_dim)
    middle = step.cumsum(1) - step / 2
    top, bottom = (middle + half).amax(1).clamp_min(0.0), (middle - half).amin(1).clamp_max(0.0)
    return top - bottom, 2 * half.sum(1)
