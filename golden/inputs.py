"""The inputs of a problem: the same bits on every machine.

Numbers are integers of a bit generator whose stream is fixed (Philox-4x64, Salmon et al., SC 2011; NumPy guarantees
the stream of a bit generator), turned into binary fractions exactly and rounded once to the storage dtype by
`round_once`. No transcendental function and no framework's generator takes part.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attnspec.golden.shapes import Shapes
from attnspec.spec.call import Call
from attnspec.spec.dtypes import FLOAT32, FLOAT64, Format, format_named
from attnspec.spec.problem import Problem

Array = npt.NDArray[np.float64]

HIDDEN_SHARE = 0.3  # of the slots of a random mask
RAMP = 60.0  # of growing scores: beyond float16's range of exp, within float32's
SINK_SHIFT = {"normal": 0.0, "high": 30.0, "low": -30.0}
FINITE_BIAS = {"low": -30000.0, "sentinel": -1e9, "low_rows": -np.inf}  # clamped to the lowest number


def make_call(problem: Problem) -> Call:
    """Return the call that a problem describes, on the CPU, with the options that it names."""
    fmt = format_named(problem.dtype)
    draw = Source(problem.seed)
    p = problem
    query = draw.normal("query", (p.batch, p.q_heads, p.q_len, p.head_dim)) * p.scores
    key = draw.normal("key", (p.kv_batch, p.kv_heads, p.k_len, p.head_dim))
    _place_scores(p, query, key)
    value = _values(draw, p.values, (p.kv_batch, p.kv_heads, p.k_len, p.value_dim))
    return Call(
        query=to_tensor(query, fmt),
        key=to_tensor(key, fmt),
        value=to_tensor(value, fmt),
        attn_mask=_mask(draw, p, fmt),
        dropout_p=p.dropout or 0.0,
        is_causal=p.causal is not None,
        scale=p.scale,
        enable_gqa=p.q_heads != p.kv_heads,
        key_lengths=_key_lengths(draw, p),
        sinks=_sinks(draw, p, fmt),
        **_alibi(draw, p),
        window_size=p.window and p.window.size,
        softcap=p.softcap,
        grad_output=_grad_output(draw, p, fmt),
        grad_lse=_grad_lse(draw, p, fmt),
    )


class Source:
    """Numbers from a seed. Each tensor has a stream of its own, so that one does not depend on the shape of
    another."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def integers(self, name: str, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` uniform 64-bit integers of the stream called `name`."""
        key = hashlib.sha256(f"attnspec/{self.seed}/{name}".encode()).digest()[:16]
        return np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)

    def uniform(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return multiples of 2^-53 in [0, 1)."""
        raw = self.integers(name, int(np.prod(shape)))
        return ((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def normal(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return nearly normal numbers, mean 0 and variance 1: the sum of 12 uniform ones (Irwin-Hall), less 6.

        Twelve 16-bit integers make the sum and 33 bits below it the rest, so every number is a multiple of 2^-49 below
        2^3, exact in float64.
        """
        raw = self.integers(name, 4 * int(np.prod(shape))).reshape(-1, 4)
        twelve = raw[:, :3].copy().view("<u2").astype(np.int64).sum(axis=1)
        fine = (raw[:, 3] >> np.uint64(31)).astype(np.int64)
        numbers: Array = ((twelve - 6 * 65536) * 2**33 + fine).astype(np.float64) * 2.0**-49
        return numbers.reshape(shape)

    def chance(self, name: str, shape: tuple[int, ...], share: float) -> npt.NDArray[np.bool_]:
        """Return True in about this share of the slots."""
        return self.uniform(name, shape) < share


def _place_scores(p: Problem, query: Array, key: Array) -> None:
    """Move the scores where the problem wants them, in place.

    keys: equal (every key is the first), growing or falling (a ramp of RAMP over the keys is added to their scores).
    shift is added to every score. Ramp and shift go through the first feature: 1 in the query, the score over the
    scale in the key.
    """
    if p.keys == "equal" and p.k_len:
        key[:] = key[:, :, :1]
    ramp = np.arange(p.k_len) / max(p.k_len - 1, 1) * RAMP - RAMP / 2
    added = p.shift + {"growing": ramp, "falling": -ramp}.get(p.keys, 0.0 * ramp)
    if added.any():
        query[..., 0] = 1.0
        key[..., 0] = added / (p.scale or 1 / math.sqrt(p.head_dim))


def _values(draw: Source, kind: str, shape: tuple[int, ...]) -> Array:
    """normal; uniform in [0, 1); spiky: a 16th of the numbers 64 times larger; constant: every key has the same value;
    sign_sorted: the first half of the keys negative, so that partial sums grow before they cancel; huge: up to half of
    float16's largest number; tiny: about float16's smallest normal number."""
    normal = draw.normal("value", shape)
    if kind == "uniform":
        return draw.uniform("value", shape)
    if kind == "spiky":
        return np.where(draw.chance("spikes", shape, 1 / 16), normal * 64, normal)
    if kind == "constant":
        return np.broadcast_to(normal[..., :1, :], shape)
    if kind == "huge":
        return np.ldexp(normal, 12)
    if kind == "tiny":
        return np.ldexp(normal, -14)
    if kind == "sign_sorted":
        late = np.arange(shape[-2])[:, None] >= shape[-2] / 2
        return np.abs(normal) * np.where(late, 1.0, -1.0)
    return normal


def draw_lengths(draw: Source, content: str, batch: int, k_len: int) -> npt.NDArray[np.int32]:
    """Return how many keys of each batch element exist, (batch,) int32.

    content: ragged (1 to k_len, all keys in the last element), short (1 to k_len - 1, as in a cache with room left;
    all where k_len is 1), zero (ragged, and none in the first), full (all).
    """
    lengths = np.full(batch, k_len)
    if content != "full":
        most = k_len - 1 if content == "short" and k_len > 1 else k_len
        drawn = 1 + (draw.uniform("key_lengths", (batch,)) * most).astype(np.int64)
        lengths = np.minimum(drawn, most)
    if content in ("ragged", "zero"):
        lengths[-1:] = k_len
    if content == "zero" and batch:
        lengths[0] = 0
    return lengths.astype(np.int32)


def draw_tokens(draw: Source, shapes: Shapes, scores: float, shift: float, scale: float) -> dict[str, torch.Tensor]:
    """Return tensors of normal numbers by name, in the dtypes and shapes given.

    scores: factor on `query`. shift: what every score is moved by, 0 for nothing: the first feature of a query is 1,
    that of a key, in a tensor whose name begins with `key`, the shift over the scale.
    """
    tensors = {}
    for name, (dtype, shape) in shapes.items():
        drawn = draw.normal(name, shape) * (scores if name == "query" else 1.0)
        if shift and name == "query":
            drawn[..., 0] = 1.0
        if shift and name.startswith("key"):
            drawn[..., 0] = shift / scale
        tensors[name] = to_tensor(drawn, format_named(dtype))
    return tensors


def _key_lengths(draw: Source, p: Problem) -> torch.Tensor | None:
    """Return the key lengths of a problem, or None."""
    return torch.from_numpy(draw_lengths(draw, p.key_lengths, p.batch, p.k_len)) if p.key_lengths else None


def _sinks(draw: Source, p: Problem, fmt: Format) -> torch.Tensor | None:
    """Return the sinks of the heads, (q_heads,), or None: normal numbers times 2 about the shift of the scores, 30
    above it (high) or 30 below (low)."""
    if p.sinks is None:
        return None
    return to_tensor(draw.normal("sinks", (p.q_heads,)) * 2 + p.shift + SINK_SHIFT[p.sinks], fmt)


def _alibi(draw: Source, p: Problem) -> dict[str, Any]:
    """Return the slopes of the heads, float32, (q_heads,) or (batch, q_heads), and what they mean; nothing without.

    They lie between 0 and 1/256, so that far keys count, and for odd heads between 0 and 1/2."""
    if p.alibi is None:
        return {}
    largest = np.where(np.arange(p.q_heads) % 2, 1 / 2, 1 / 256)
    shape = (p.q_heads,) if p.alibi.shape == "h" else (p.batch, p.q_heads)
    return {
        "alibi_slopes": to_tensor(draw.uniform("alibi_slopes", shape) * largest, FLOAT32),
        "alibi_form": p.alibi.form,
        "alibi_alignment": p.alibi.corner,
        "learned_slopes": p.alibi.learned,
    }


def _grad_output(draw: Source, p: Problem, fmt: Format) -> torch.Tensor | None:
    """Return what flows back to the output, normal numbers, or None."""
    shape = (p.batch, p.q_heads, p.q_len, p.value_dim)
    return to_tensor(draw.normal("grad_output", shape), fmt) if p.grad else None


def _grad_lse(draw: Source, p: Problem, fmt: Format) -> torch.Tensor | None:
    """Return what flows back to the lse, normal numbers, or None."""
    wide = FLOAT64 if fmt == FLOAT64 else FLOAT32
    return to_tensor(draw.normal("grad_lse", (p.batch, p.q_heads, p.q_len)), wide) if p.grad == "lse" else None


def _mask(draw: Source, p: Problem, fmt: Format) -> torch.Tensor | None:
    """Return the `attn_mask` of a problem, or None.

    Contents: random (slots hidden at random), padding (keys hidden from a length on that differs from row to row of
    the batch), empty_rows (random, and about a third of the query rows see nothing), empty_head (random, and the last
    head or else all see nothing), leading (the first half of the keys hidden), all (nothing hidden), bias (nothing
    hidden; float only differs), low and sentinel (float: where `empty_rows` hides, the bias is finite and far below
    the others, -30000, or -1e9 and in float16 its lowest number; bool: nothing hidden), low_rows (float: 0, and the
    lowest number of the dtype in every slot of each odd row, which hides nothing). A float mask is a normal bias, -inf
    where hidden.
    """
    if p.mask is None:
        return None
    sizes = {"b": p.batch, "h": p.q_heads, "q": p.q_len, "k": p.k_len, "1": 1}
    shape = tuple(sizes[letter] for letter in p.mask.shape)
    finite = p.mask.content in FINITE_BIAS
    content = p.mask.content
    if finite:
        content = "all" if p.mask.kind == "bool" else "odd_rows" if content == "low_rows" else "empty_rows"
    keep = _keep(draw, content, (1,) * (4 - len(shape)) + shape).reshape(shape)
    if p.mask.kind == "bool":
        return torch.from_numpy(keep)
    hidden = max(FINITE_BIAS[p.mask.content], -fmt.largest) if finite else -np.inf
    bias = np.zeros(shape) if p.mask.content == "low_rows" else draw.normal("bias", shape)
    return to_tensor(np.where(keep, bias, hidden), fmt)


def _keep(draw: Source, content: str, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return which slots take part, for a mask of this shape (batch, heads, rows, keys), each the full size or 1."""
    batch, heads, rows, keys = shape
    if content in ("all", "bias"):
        return np.ones(shape, np.bool_)
    if content == "padding":
        lengths = 1 + (draw.uniform("lengths", (batch, heads, rows, 1)) * keys).astype(np.int64)
        return np.arange(keys) < lengths
    if content == "leading":
        return np.broadcast_to(np.arange(keys) >= (keys + 1) // 2, shape).copy()
    if content == "odd_rows":
        return np.broadcast_to(np.arange(rows)[:, None] % 2 == 0, shape).copy()
    keep = ~draw.chance("hidden", shape, HIDDEN_SHARE)
    if content == "empty_rows":
        empty = draw.chance("empty", (batch, heads, rows, 1), 1 / 3)
        empty[..., -1:, :] = True
        keep &= ~empty
    if content == "empty_head":
        keep[:, -1:] = False
    return keep


def to_tensor(x: Array, fmt: Format) -> torch.Tensor:
    """Return `x` rounded once to the format, as a contiguous tensor of its dtype."""
    return torch.from_numpy(np.ascontiguousarray(round_once(x, fmt))).to(fmt.torch_dtype)


def round_once(x: Array, fmt: Format) -> Array:
    """Return `x` (float64) rounded to the nearest number of the format, ties to even, as float64.

    A chain float64 -> float32 -> bfloat16, which torch uses, rounds twice and can go wrong: 1 + 2^-8 + 2^-30.
    """
    if fmt.precision == 53:
        return x
    exponent = np.frexp(x)[1] - 1  # 2^exponent <= |x| < 2^(exponent + 1)
    step = np.maximum(exponent, fmt.emin) - (fmt.precision - 1)  # the exponent of one unit in the last place
    with np.errstate(invalid="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(x, -step)), step)
    rounded = np.where(np.isfinite(x), rounded, x)
    return np.where(np.abs(rounded) > fmt.largest, np.copysign(np.inf, rounded), rounded)
