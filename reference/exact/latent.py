"""Latent attention, every entry proven correctly rounded: scores q W^UK c + q_rope k_rope and values W^UV c are exact.

Queries, cache and matrices are dyadic numbers, so the products are integers times a power of two, which float64 need
not hold. From there on it is the exact attention: groups of equal score, a rational base and an offset in balls; and
its gradients are those of `attnspec.reference.exact.backward`, with products in the place of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnspec.reference.exact.attention import ExactResult
from attnspec.reference.exact.gradient_ties import Addend, settle_sum
from attnspec.reference.exact.head_gradient import Balls, entries, zeros
from attnspec.reference.exact.inputs import checked_lengths, checked_scale, finite
from attnspec.reference.exact.latent_head import LatentHead, LatentHeadGradient
from attnspec.reference.exact.precision import first_precision, working_precision
from attnspec.reference.exact.rounding import round_ball
from attnspec.reference.exact.scale import ONE, Scale, scale_of
from attnspec.reference.exact.ties import GroupedRow, groups_of_row
from attnspec.reference.exact.visibility import UPPER_LEFT, causal_visible
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError

Place = tuple[int, int]
Parts = tuple[list[Addend], list[Addend]]
"""What scores, over the scale, and weights add to an entry."""


@dataclass(frozen=True)
class ExactLatentGradients:
    """The true gradients, rounded once, each of the shape of its input."""

    query: NDArray[np.float64]
    latent: NDArray[np.float64]
    key_rope: NDArray[np.float64]
    w_uk: NDArray[np.float64]
    w_uv: NDArray[np.float64]


def latent_attention(
    query: NDArray[np.floating],
    latent: NDArray[np.floating],
    key_rope: NDArray[np.floating],
    w_uk: NDArray[np.floating],
    w_uv: NDArray[np.floating],
    *,
    is_causal: bool = False,
    causal_alignment: str = UPPER_LEFT,
    scale: float | None = None,
    key_lengths: NDArray[np.integer] | None = None,
    rounded_to: Format = FLOAT64,
) -> ExactResult:
    """Return latent attention and its lse, each entry the true real number rounded once to `rounded_to`.

    query: (batch, heads, q_len, nope_dim + rope_dim); latent: (batch, k_len, kv_rank); key_rope: (batch, k_len,
    rope_dim), as given, rotated or not; w_uk: (heads, nope_dim, kv_rank); w_uv: (heads, value_dim, kv_rank); float16,
    float32 or float64, finite. scale: None is the real number 1/sqrt(nope_dim + rope_dim). key_lengths: (batch,), how
    many tokens of the cache exist; each batch element is over those alone. A row that sees no key has output 0 and lse
    -inf. Raises InputError for arguments that do not fit, UndecidedError where PRECISION_CAP bits do not prove a
    rounding. Rules `latent.expanded`, `latent.scale`. Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1.
    """
    heads = _heads((query, latent, key_rope, w_uk, w_uv), is_causal, causal_alignment, scale, key_lengths)
    rows, value_dim = query.shape[:3], w_uv.shape[1]
    start = first_precision(rounded_to, latent.shape[1])
    output, lse = np.zeros((*rows, value_dim)), np.full(rows, -np.inf)
    for (b, h), head in heads.items():
        columns = [[int(x) for x in column] for column in head.values.integers.transpose().table()]
        for i in np.flatnonzero(head.visible.any(axis=1)).tolist():
            groups = groups_of_row(head.scores, i, np.flatnonzero(head.visible[i]).tolist())
            row = GroupedRow(head.scores, groups, rounded_to, start, f"batch {b}, head {h}, row {i}")
            lse[b, h, i] = row.lse()
            output[b, h, i] = [row.output(x, head.values.exponent, f"column {n}") for n, x in enumerate(columns)]
    return ExactResult(output, lse)


def latent_backward(
    query: NDArray[np.floating],
    latent: NDArray[np.floating],
    key_rope: NDArray[np.floating],
    w_uk: NDArray[np.floating],
    w_uv: NDArray[np.floating],
    grad_output: NDArray[np.floating],
    *,
    grad_lse: NDArray[np.floating] | None = None,
    is_causal: bool = False,
    causal_alignment: str = UPPER_LEFT,
    scale: float | None = None,
    key_lengths: NDArray[np.integer] | None = None,
    rounded_to: Format = FLOAT64,
) -> ExactLatentGradients:
    """Return the gradients of a loss by query, latent, key_rope, w_uk and w_uv, each rounded once to `rounded_to`.

    grad_output: (batch, heads, q_len, value_dim); grad_lse: (batch, heads, q_len), None for 0; both finite. The others
    are those of `latent_attention`. A token that no query sees has gradient 0, and so has a query that sees no token;
    zeros are +0. Raises InputError and UndecidedError as `latent_attention` does. Rule `latent.gradient`. Source: the
    chain rule on DeepSeek-AI 2024, equations 9 to 19.
    """
    given = (query, latent, key_rope, w_uk, w_uv)
    heads = _heads(given, is_causal, causal_alignment, scale, key_lengths)
    rows = query.shape[:3]
    flow = finite("grad_output", grad_output, 4)
    of_lse = np.zeros(rows) if grad_lse is None else finite("grad_lse", grad_lse, 3)
    if flow.shape != (*rows, w_uv.shape[1]) or of_lse.shape != rows:
        expected = f"use {(*rows, w_uv.shape[1])} and {rows}"
        raise InputError(f"grad_output has shape {flow.shape} and grad_lse {of_lse.shape}: {expected}")
    backward = {}
    for place, head in heads.items():
        seeing = np.asarray(head.visible.any(axis=1))
        arriving = np.where(seeing[:, None], flow[place], 0.0), np.where(seeing, of_lse[place], 0.0)
        backward[place] = LatentHeadGradient(head, *arriving)
    shapes = dict(zip(("query", "latent", "key_rope", "w_uk", "w_uv"), (x.shape for x in given), strict=True))
    return _Gradients(backward, shapes, scale_of(checked_scale(scale), query.shape[3])).rounded(rounded_to)


def _heads(
    given: tuple[NDArray[np.floating], ...],
    is_causal: bool,
    causal_alignment: str,
    scale: float | None,
    key_lengths: NDArray[np.integer] | None,
) -> dict[Place, LatentHead]:
    """Return the heads of a call by batch element and head. Raises InputError."""
    named = {"query": 4, "latent": 3, "key_rope": 3, "w_uk": 3, "w_uv": 3}
    q, c, k_rope, up_k, up_v = (finite(name, x, ndim) for (name, ndim), x in zip(named.items(), given, strict=True))
    batch, heads, q_len, head_dim = q.shape
    nope_dim, kv_rank = up_k.shape[1:]
    if up_k.shape[0] != heads or up_v.shape[::2] != (heads, kv_rank) or c.shape[::2] != (batch, kv_rank):
        raise InputError(f"query {q.shape}, latent {c.shape}, w_uk {up_k.shape}, w_uv {up_v.shape} do not fit")
    if k_rope.shape != (*c.shape[:2], head_dim - nope_dim):
        raise InputError(f"key_rope has shape {k_rope.shape}: use {(*c.shape[:2], head_dim - nope_dim)}")
    factor, found = scale_of(checked_scale(scale), head_dim), {}
    for b, length in enumerate(checked_lengths(key_lengths, batch, c.shape[1])):
        visible = np.zeros((q_len, c.shape[1]), dtype=np.bool_)
        visible[:, :length] = causal_visible(q_len, length, causal_alignment) if is_causal else True
        seen = np.asarray(visible.any(axis=0))[:, None]
        tokens = np.where(seen, c[b], 0.0), np.where(seen, k_rope[b], 0.0)
        for h in range(heads):
            nope, rope = q[b, h, :, :nope_dim], q[b, h, :, nope_dim:]
            found[b, h] = LatentHead(nope, rope, *tokens, up_k[h], up_v[h], visible, factor)
    return found


@dataclass(frozen=True)
class _Gradients:
    """The gradients of a call: heads by batch element and head, shapes of the inputs by name."""

    heads: dict[Place, LatentHeadGradient]
    shapes: dict[str, tuple[int, ...]]
    scale: Scale

    def rounded(self, fmt: Format) -> ExactLatentGradients:
        """Return the gradients, rounded to `fmt`: in balls first, the entries that stay open by an exact argument."""
        of_entry: dict[str, Callable[..., Parts]] = {
            "query": self._of_query,
            "latent": self._of_latent,
            "key_rope": self._of_key_rope,
            "w_uk": self._of_w_uk,
            "w_uv": self._of_w_uv,
        }
        start = first_precision(fmt, sum(head.visible.size for head in self.heads.values()))
        with working_precision(start):
            balls = self._balls()
        found = {}
        for name, of_name in balls.items():
            with working_precision(start):
                numbers = [round_ball(ball, fmt) for ball in of_name.ravel().tolist()]
            for n, index in enumerate(np.ndindex(of_name.shape)):
                if numbers[n] is None:
                    of_scores, of_weights = of_entry[name](*index)
                    parts = [(of_scores, self.scale), (of_weights, ONE)]
                    what = f"gradient of {name} at {index}"
                    numbers[n] = settle_sum(parts, self.scale.radicand, fmt, start, what)
            found[name] = np.array(numbers, dtype=np.float64).reshape(of_name.shape)
        return ExactLatentGradients(**found)

    def _balls(self) -> dict[str, Balls]:
        """Return the gradients as balls of the working precision."""
        found = {name: zeros(shape) for name, shape in self.shapes.items()}
        for (b, h), head in self.heads.items():
            given = {name: entries(matrix) for name, matrix in head.balls().items()}
            places: dict[str, Any] = {"query": (b, h), "latent": b, "key_rope": b, "w_uk": h, "w_uv": h}
            for name, place in places.items():
                found[name][place] += given[name]
        return found

    def _of_query(self, b: int, h: int, row: int, column: int) -> Parts:
        return self.heads[b, h].to_query(row, column), []

    def _of_latent(self, b: int, key: int, column: int) -> Parts:
        given = [head.to_latent(key, column) for (batch, _), head in self.heads.items() if batch == b]
        return [x for of_scores, _ in given for x in of_scores], [x for _, of_weights in given for x in of_weights]

    def _of_key_rope(self, b: int, key: int, column: int) -> Parts:
        given = (head.to_key_rope(key, column) for (batch, _), head in self.heads.items() if batch == b)
        return [x for of_head in given for x in of_head], []

    def _of_w_uk(self, h: int, out: int, column: int) -> Parts:
        given = (head.to_w_uk(out, column) for (_, of), head in self.heads.items() if of == h)
        return [x for of_batch in given for x in of_batch], []

    def _of_w_uv(self, h: int, out: int, column: int) -> Parts:
        given = (head.to_w_uv(out, column) for (_, of), head in self.heads.items() if of == h)
        return [], [x for of_batch in given for x in of_batch]
