"""What the exact oracle accepts: shapes that fit, known dtypes, finite numbers wherever a query can see them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from attnspec.reference.exact.alibi import distance, exact_bias
from attnspec.reference.exact.head import HeadInput
from attnspec.reference.exact.visibility import UPPER_LEFT, causal_visible, window_visible
from attnspec.spec.errors import InputError

FLOAT_DTYPES = ("float16", "float32", "float64")
LENGTH_DTYPES = ("int32", "int64")

AnyNumber = TypeVar("AnyNumber", np.bool_, np.float64)


@dataclass(frozen=True)
class AttentionInput:
    """The arrays of one call, checked and in float64, with key and value not yet repeated over batch or heads.

    query: (batch, q_heads, q_len, head_dim); key: (kv_batch, kv_heads, k_len, head_dim); value: (kv_batch, kv_heads,
    k_len, value_dim); visible: (batch, q_heads, q_len, k_len) bool; bias: the same shape, or None. slopes, distance:
    of ALiBi, (batch, q_heads) and (batch, q_len, k_len) integers, or None.
    """

    query: NDArray[np.float64]
    key: NDArray[np.float64]
    value: NDArray[np.float64]
    bias: NDArray[np.float64] | None
    visible: NDArray[np.bool_]
    slopes: NDArray[np.float64] | None = None
    distance: NDArray[np.int64] | None = None

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """(batch, q_heads, q_len, value_dim)."""
        batch, q_heads, q_len, _ = self.query.shape
        return batch, q_heads, q_len, self.value.shape[3]

    def head(self, batch: int, head: int) -> HeadInput:
        """Return what one query head sees: it reads key/value head floor(head / group) (rule `grouped.head-map`).

        Rows and keys that take no part are set to 0, whatever they hold. Raises InputError for a NaN or an infinity in
        a row or key that takes part.
        """
        group = self.query.shape[1] // self.key.shape[1]
        source = (batch if self.key.shape[0] > 1 else 0, head // group)
        visible = self.visible[batch, head]  # (q_len, k_len)
        seeing, seen = visible.any(axis=1), visible.any(axis=0)
        at = f"batch {batch}, head {head}"
        positions = None
        if self.slopes is not None and self.distance is not None:
            positions = exact_bias(self.slopes[batch, head], self.distance[batch])
        return HeadInput(
            query=_finite_where(self.query[batch, head], seeing[:, None], f"query ({at})"),
            key=_finite_where(self.key[source], seen[:, None], f"key (read by {at})"),
            value=_finite_where(self.value[source], seen[:, None], f"value (read by {at})"),
            bias=None if self.bias is None else _finite_where(self.bias[batch, head], visible, f"attn_mask ({at})"),
            visible=visible,
            positions=positions,
        )


def checked_input(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    *,
    attn_mask: NDArray[np.bool_] | NDArray[np.floating] | None,
    is_causal: bool,
    causal_alignment: str,
    enable_gqa: bool,
    key_lengths: NDArray[np.integer] | None = None,
    sinks: NDArray[np.floating] | None = None,
    window_size: tuple[int, int] | None = None,
    alibi_slopes: NDArray[np.floating] | None = None,
    alibi_form: str = "symmetric",
    alibi_alignment: str = UPPER_LEFT,
) -> AttentionInput:
    """Return the arrays of a call as float64, with the slots that each query may see.

    causal_alignment: of causal triangle and window. key_lengths: (batch,); the call of a batch element is that of its
    first keys alone, so its causal corner lies at its own last key (rules `key-lengths.visible`,
    `key-lengths.causal`). sinks: (q_heads,), each of which becomes one more key, the last one: its score is the sink
    and its value 0 (rule `sinks.weight`). alibi_slopes: (q_heads,) or (batch, q_heads), of the form alibi_form at the
    corner alibi_alignment. Raises InputError for dtypes, shapes, lengths, slopes or a window that do not fit.
    """
    q, k, v = _floats("query", query), _floats("key", key), _floats("value", value)
    _check_shapes(q, k, v)
    _check_heads(q.shape[1], k.shape[1], enable_gqa)
    shape = (*q.shape[:3], k.shape[2])  # (batch, q_heads, q_len, k_len)
    visible = np.zeros(shape, dtype=np.bool_)
    for batch, length in enumerate(checked_lengths(key_lengths, shape[0], shape[3])):
        slots = visible[batch, :, :, :length]  # (q_heads, q_len, length)
        slots[...] = True
        if is_causal:
            slots &= causal_visible(shape[2], length, causal_alignment)
        if window_size is not None:
            slots &= window_visible(shape[2], length, window_size, causal_alignment)
    bias = None
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        if mask.dtype == np.bool_:
            visible = visible & _broadcast_mask(mask, shape)
        else:
            bias = _broadcast_mask(_floats("attn_mask", mask), shape)
            visible = visible & (bias != -math.inf)
    slopes = far = None
    if alibi_slopes is not None:
        slopes = _checked_slopes(alibi_slopes, shape[0], shape[1])
        lengths = None if key_lengths is None else np.asarray(key_lengths)
        one_or_all = distance(shape[2], shape[3], alibi_form, alibi_alignment, lengths)
        far = np.broadcast_to(one_or_all[:, 0], (shape[0], *shape[2:]))
    given = AttentionInput(q, k, v, bias, visible, slopes, far)
    return given if sinks is None else _with_sinks(given, _floats("sinks", sinks))


def _with_sinks(given: AttentionInput, sinks: NDArray[np.float64]) -> AttentionInput:
    """Return the call with a key more, of zeros, which every row sees with the bias of its head's sink; -inf hides it.

    Raises InputError for another shape than (q_heads,).
    """
    shape = given.visible.shape  # (batch, q_heads, q_len, k_len)
    if sinks.shape != shape[1:2]:
        raise InputError(f"sinks has shape {sinks.shape}: use ({shape[1]},), one for each query head")
    bias = np.zeros(shape) if given.bias is None else given.bias
    column = np.broadcast_to(sinks[:, None, None], (*shape[:3], 1))
    key, value = (np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0))) for x in (given.key, given.value))
    return AttentionInput(
        query=given.query,
        key=key,
        value=value,
        bias=np.concatenate([bias, column], axis=-1),
        visible=np.concatenate([given.visible, column != -math.inf], axis=-1),
        slopes=given.slopes,
        distance=None if given.distance is None else np.pad(given.distance, ((0, 0), (0, 0), (0, 1))),
    )


def finite(name: str, array: NDArray[np.floating], ndim: int) -> NDArray[np.float64]:
    """Return the array in float64. Raises InputError for another rank or dtype and for a NaN or an infinity."""
    if array.ndim != ndim or array.dtype.name not in FLOAT_DTYPES:
        raise InputError(f"{name} is {array.dtype} {array.shape}: use {ndim} axes of {', '.join(FLOAT_DTYPES)}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} holds a NaN or an infinity: the exact oracle takes finite numbers")
    return array.astype(np.float64)


def checked_scale(scale: float | None) -> float | None:
    """Return the scale as a float64 number, or None. Raises InputError unless it is finite."""
    if scale is None:
        return None
    scale = float(scale)
    if not math.isfinite(scale):
        raise InputError(f"scale is {scale}: use a finite number, or None for 1/sqrt(head_dim)")
    return scale


def checked_softcap(softcap: float | None) -> float:
    """Return the cap as a float64 number, 0.0 for none. Raises InputError for one below 0 or not finite (rule
    `softcap.range`)."""
    cap = float(softcap or 0.0)
    if not 0 <= cap < math.inf:
        raise InputError(f"softcap is {cap}: use a finite number of 0 or more, or None")
    return cap


def _floats(name: str, array: NDArray[np.generic]) -> NDArray[np.float64]:
    array = np.asarray(array)
    if array.dtype.name not in FLOAT_DTYPES:
        more = " or bool" if name == "attn_mask" else ""
        raise InputError(f"{name} has dtype {array.dtype}: use {', '.join(FLOAT_DTYPES)}{more}")
    return array.astype(np.float64)


def _check_shapes(q: NDArray[np.float64], k: NDArray[np.float64], v: NDArray[np.float64]) -> None:
    """Raise InputError where an axis of query, key or value does not fit the others."""
    for name, array in (("query", q), ("key", k), ("value", v)):
        if array.ndim != 4:
            raise InputError(f"{name} has shape {array.shape}: use 4 axes, (batch, heads, length, dim)")
    if q.shape[3] == 0:
        raise InputError("query has head_dim 0: use at least 1")
    if k.shape[3] != q.shape[3]:
        raise InputError(f"key has head_dim {k.shape[3]} and query {q.shape[3]}: make them equal")
    if v.shape[:3] != k.shape[:3]:
        raise InputError(f"value has (batch, heads, length) {v.shape[:3]} and key {k.shape[:3]}: make them equal")
    if k.shape[0] not in (q.shape[0], 1):
        raise InputError(f"key and value have batch {k.shape[0]}: use the query's {q.shape[0]}, or 1")


def _check_heads(q_heads: int, kv_heads: int, enable_gqa: bool) -> None:
    if not enable_gqa and q_heads != kv_heads:
        raise InputError(f"query has {q_heads} heads and key {kv_heads}: make them equal, or set enable_gqa")
    if q_heads and (kv_heads == 0 or q_heads % kv_heads):
        raise InputError(f"query has {q_heads} heads and key {kv_heads}: use a multiple of the key's heads")


def checked_lengths(key_lengths: NDArray[np.integer] | None, batch: int, k_len: int) -> list[int]:
    """Return how many keys each batch element has (rule `key-lengths.range`): all where no lengths are given."""
    if key_lengths is None:
        return [k_len] * batch
    array = np.asarray(key_lengths)
    if array.dtype.name not in LENGTH_DTYPES:
        raise InputError(f"key_lengths has dtype {array.dtype}: use {' or '.join(LENGTH_DTYPES)}")
    if array.shape != (batch,):
        raise InputError(f"key_lengths has shape {array.shape}: use ({batch},), a length for each batch element")
    lengths: list[int] = array.tolist()
    for place, length in enumerate(lengths):
        if length < 0 or length > k_len:
            raise InputError(f"key_lengths holds {length} at {place}: use 0 to {k_len}, the number of keys")
    return lengths


def _checked_slopes(alibi_slopes: NDArray[np.floating], batch: int, q_heads: int) -> NDArray[np.float64]:
    """Return the slopes as (batch, q_heads). Raises InputError for another shape or dtype, or one that is not finite
    (rule `alibi.shape`)."""
    slopes = _floats("alibi_slopes", alibi_slopes)
    if slopes.shape not in ((q_heads,), (batch, q_heads)):
        raise InputError(f"alibi_slopes has shape {slopes.shape}: use ({q_heads},) or ({batch}, {q_heads})")
    return finite("alibi_slopes", np.broadcast_to(slopes, (batch, q_heads)), 2)


def _broadcast_mask(mask: NDArray[AnyNumber], shape: tuple[int, ...]) -> NDArray[AnyNumber]:
    """Return the mask as (batch, q_heads, q_len, k_len)."""
    try:
        return np.broadcast_to(mask, shape)
    except ValueError:
        raise InputError(
            f"attn_mask has shape {mask.shape}: use one that broadcasts to (batch, q_heads, q_len, k_len) = {shape}"
        ) from None


def _finite_where(array: NDArray[np.float64], used: NDArray[np.bool_], name: str) -> NDArray[np.float64]:
    """Return the array with 0 wherever it is not used. Raises InputError for a used entry that is not finite."""
    faults = np.argwhere(~np.isfinite(array) & used)
    if len(faults):
        where = tuple(faults[0].tolist())
        raise InputError(f"{name} holds {array[where]} at {where}: the exact oracle takes finite numbers where visible")
    return np.where(used, array, 0.0)
