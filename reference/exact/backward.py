"""The gradients of scaled dot-product attention, every entry proven correctly rounded (chapter "backward")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from flint import fmpq, fmpq_mat
from numpy.typing import NDArray

from attnspec.reference.exact.dropout import keep_factor
from attnspec.reference.exact.entries import Entries, of_mask, of_sinks, of_slopes
from attnspec.reference.exact.gradient_ties import Addend, factor_ball, settle
from attnspec.reference.exact.head_gradient import Balls, HeadGradient, ball_matrix, entries, exact, zeros
from attnspec.reference.exact.inputs import FLOAT_DTYPES, AttentionInput, checked_input, checked_scale, checked_softcap
from attnspec.reference.exact.precision import PRECISION_CAP, UndecidedError, first_precision, working_precision
from attnspec.reference.exact.rounding import round_ball
from attnspec.reference.exact.scale import ONE, Scale, scale_of
from attnspec.reference.exact.visibility import UPPER_LEFT
from attnspec.spec.dtypes import FLOAT64, Format
from attnspec.spec.errors import InputError

Addends = Callable[..., Iterator[Addend]]
"""What the rows add to the entry at an index."""


@dataclass(frozen=True)
class ExactGradients:
    """The true gradients, rounded once, each of the shape of its input; attn_mask is None for a bool mask or none,
    sinks and alibi_slopes for none."""

    query: NDArray[np.float64]
    key: NDArray[np.float64]
    value: NDArray[np.float64]
    attn_mask: NDArray[np.float64] | None = None
    sinks: NDArray[np.float64] | None = None
    alibi_slopes: NDArray[np.float64] | None = None


def backward(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    grad_output: NDArray[np.floating],
    *,
    grad_lse: NDArray[np.floating] | None = None,
    attn_mask: NDArray[np.bool_] | NDArray[np.floating] | None = None,
    is_causal: bool = False,
    causal_alignment: str = UPPER_LEFT,
    scale: float | None = None,
    enable_gqa: bool = False,
    key_lengths: NDArray[np.integer] | None = None,
    sinks: NDArray[np.floating] | None = None,
    window_size: tuple[int, int] | None = None,
    dropout_p: float = 0.0,
    keep: NDArray[np.bool_] | None = None,
    softcap: float | None = None,
    alibi_slopes: NDArray[np.floating] | None = None,
    alibi_form: str = "symmetric",
    alibi_alignment: str = UPPER_LEFT,
    rounded_to: Format = FLOAT64,
) -> ExactGradients:
    """Return the gradients of a loss by query, key, value, an additive attn_mask, sinks and slopes, each rounded
    once.

    query to value, attn_mask to window_size and softcap to alibi_alignment are those of
    `attnspec.reference.exact.attention`. grad_output: gradient of the loss with respect to the output, (batch, q_heads,
    q_len, value_dim); grad_lse: with respect to the lse, (batch, q_heads, q_len), None for 0; float16, float32 or
    float64, read as exact numbers. dropout_p, keep: those of `attnspec.reference.exact.dropout.dropped_attention`; None
    for no dropout. Rows that see no key and slots that are hidden add 0; zeros are +0.

    Raises InputError for arguments that do not fit and for a NaN or an infinity that takes part, UndecidedError where
    PRECISION_CAP bits do not prove a rounding (module `gradient_ties` says which entries can come to that). Rules
    `backward.query`, `backward.key`, `backward.value`, `backward.bias`, `backward.lse`, `backward.grouped`,
    `backward.broadcast`, `backward.empty-row`, `backward.hidden`, `backward.matches-forward`, `backward.dropout`,
    `sinks.gradient`, `alibi.gradient`.
    Source: Dao et al. 2022 (FlashAttention), appendix B.2.
    """
    given = checked_input(
        query,
        key,
        value,
        attn_mask=attn_mask,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        enable_gqa=enable_gqa,
        key_lengths=key_lengths,
        sinks=sinks,
        window_size=window_size,
        alibi_slopes=alibi_slopes,
        alibi_form=alibi_form,
        alibi_alignment=alibi_alignment,
    )
    seeing = np.asarray(given.visible.any(axis=-1))  # (batch, q_heads, q_len)
    grad_output = _checked_gradient("grad_output", grad_output, given.output_shape, seeing[..., None])
    lse_shape = given.output_shape[:3]
    grad_lse = _checked_gradient("grad_lse", np.zeros(lse_shape) if grad_lse is None else grad_lse, lse_shape, seeing)
    factor = scale_of(checked_scale(scale), given.query.shape[3])
    drops = None if keep is None else _dropped(dropout_p, keep, given.visible.shape)
    cap = checked_softcap(softcap)
    heads = {
        (b, h): HeadGradient(
            given.head(b, h), grad_output[b, h], grad_lse[b, h], factor, None if drops is None else drops[b, h], cap
        )
        for b, h in np.ndindex(lse_shape[:2])
    }
    seen = given.visible.shape  # (batch, q_heads, q_len, k_len), with sinks one key more
    terms: dict[str, Entries] = {}
    if attn_mask is not None and np.asarray(attn_mask).dtype != np.bool_:
        slots = seen if sinks is None else (*seen[:3], seen[3] - 1)
        terms["attn_mask"] = of_mask(np.shape(attn_mask), slots, seen)
    if sinks is not None:
        terms["sinks"] = of_sinks(seen)
    if alibi_slopes is not None and given.distance is not None:
        terms["alibi_slopes"] = of_slopes(np.shape(alibi_slopes), given.distance, seen)
    gradient = _CallGradient(given, heads, factor, terms)
    return gradient.rounded_by_balls(rounded_to) if cap else gradient.rounded(rounded_to)


@dataclass(frozen=True)
class _CallGradient:
    """All heads of a call. terms: the additive terms of the scores, by name. With sinks, the last key is that of the
    sink."""

    given: AttentionInput
    heads: dict[tuple[int, int], HeadGradient]
    scale: Scale
    terms: dict[str, Entries]

    def rounded(self, fmt: Format) -> ExactGradients:
        """Return the gradients, rounded to `fmt`: in balls first, the entries that stay open by an exact argument."""
        start = first_precision(fmt, self.given.visible.size)
        with working_precision(start):
            found = self._balls()

            def settled(name: str, balls: Balls, addends: Addends, factor: Scale) -> NDArray[np.float64]:
                numbers = [round_ball(ball, fmt) for ball in balls.ravel().tolist()]
                for n, index in enumerate(np.ndindex(balls.shape)):
                    if numbers[n] is None:
                        what = f"gradient of {name} at {index}"
                        numbers[n] = settle(addends(*index), factor, self.scale.radicand, fmt, start, what)
                return np.array(numbers, dtype=np.float64).reshape(balls.shape)

            inputs = {
                "query": (self._query_addends, self.scale),
                "key": (self._key_addends, self.scale),
                "value": (self._value_addends, ONE),
            }
            of_terms = {name: (self._addends_of(term), ONE) for name, term in self.terms.items()}
            return ExactGradients(
                **{name: settled(name, found[name], *how) for name, how in (inputs | of_terms).items()}
            )

    def rounded_by_balls(self, fmt: Format) -> ExactGradients:
        """Return the gradients, rounded to `fmt`, by balls alone: all of them again, twice as narrow, until each one is
        decided. For capped scores, of which `gradient_ties` knows nothing. Raises UndecidedError at the cap."""
        bits = first_precision(fmt, self.given.visible.size)
        while True:
            with working_precision(bits):
                found = self._balls()
                rounded = {name: [round_ball(ball, fmt) for ball in x.ravel().tolist()] for name, x in found.items()}
            if not any(None in numbers for numbers in rounded.values()):
                break
            if bits >= PRECISION_CAP:
                raise UndecidedError(f"gradients of capped scores: not decided at {bits} bits")
            bits = min(2 * bits, PRECISION_CAP)
        return ExactGradients(
            **{name: np.array(rounded[name], dtype=np.float64).reshape(balls.shape) for name, balls in found.items()}
        )

    def _balls(self) -> dict[str, Balls]:
        """Return the gradients as balls of the working precision, by name."""
        query, key, value = (zeros(x.shape) for x in (self.given.query, self.given.key, self.given.value))
        totals = {name: zeros(term.shape) for name, term in self.terms.items()}
        for (b, h), head in self.heads.items():
            weights, grad_scores, grad_scaled = head.weights_and_grad_scores()
            source = self._source(b, h)
            query[b, h] = entries(grad_scaled * ball_matrix(head.given.key))
            key[source] += entries(grad_scaled.transpose() * ball_matrix(head.given.query))
            value[source] += entries(weights.transpose() * ball_matrix(head.grad_output))
            for name, term in self.terms.items():
                reads = term.of_slot[b, h] >= 0
                added = entries(grad_scores)[reads] * term.factor[b, h][reads].astype(np.object_)
                np.add.at(totals[name].reshape(-1), term.of_slot[b, h][reads], added)
        factor = factor_ball(self.scale)
        keys = slice(0, -1 if "sinks" in self.terms else None)  # all but the sink's
        return {"query": query * factor, "key": key[:, :, keys] * factor, "value": value[:, :, keys], **totals}

    def _source(self, batch: int, head: int) -> tuple[int, int]:
        """Return the batch and head of key and value that a query head reads (rule `grouped.head-map`)."""
        group = self.given.query.shape[1] // self.given.key.shape[1]
        return batch if self.given.key.shape[0] > 1 else 0, head // group

    def _readers(self, kv_batch: int, kv_head: int, key: int) -> Iterator[tuple[HeadGradient, int]]:
        """Yield every row that sees a key, with its head."""
        for place, head in self.heads.items():
            if self._source(*place) == (kv_batch, kv_head):
                for row in np.flatnonzero(head.given.visible[:, key]).tolist():
                    yield head, row

    def _query_addends(self, batch: int, head: int, row: int, column: int) -> Iterator[Addend]:
        reader = self.heads[batch, head]
        if reader.keys_of_row[row]:
            keys = reader.given.key[:, column]
            yield reader.of_scores(row, {j: exact(keys[j]) for j in reader.keys_of_row[row]})

    def _key_addends(self, kv_batch: int, kv_head: int, key: int, column: int) -> Iterator[Addend]:
        for reader, row in self._readers(kv_batch, kv_head, key):
            yield reader.of_scores(row, {key: exact(reader.given.query[row, column])})

    def _value_addends(self, kv_batch: int, kv_head: int, key: int, column: int) -> Iterator[Addend]:
        for reader, row in self._readers(kv_batch, kv_head, key):
            yield reader.of_weights(row, {key: exact(reader.grad_output[row, column])})

    def _addends_of(self, term: Entries) -> Addends:
        """Return what the rows add to the entries of an additive term."""

        def addends(*index: int) -> Iterator[Addend]:
            entry = np.ravel_multi_index(index, term.shape) if index else 0
            slots = (term.of_slot == entry) & (term.factor != 0) & self.given.visible
            for b, h, row in np.argwhere(slots.any(axis=-1)).tolist():
                keys = np.flatnonzero(slots[b, h, row]).tolist()
                yield self.heads[b, h].of_scores(row, {j: fmpq(int(term.factor[b, h, row, j])) for j in keys})

        return addends


def _checked_gradient(
    name: str, array: NDArray[np.floating], shape: tuple[int, ...], used: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return a gradient as float64, with 0 in the rows that see no key. Raises InputError."""
    array = np.asarray(array)
    if array.dtype.name not in FLOAT_DTYPES:
        raise InputError(f"{name} has dtype {array.dtype}: use {', '.join(FLOAT_DTYPES)}")
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}: use {shape}")
    faults = np.argwhere(~np.isfinite(array) & used)
    if len(faults):
        where = tuple(faults[0].tolist())
        raise InputError(f"{name} holds {array[where]} at {where}: the exact oracle takes finite numbers there")
    return np.where(used, array, 0.0).astype(np.float64)


def _dropped(dropout_p: float, keep: NDArray[np.bool_], shape: tuple[int, ...]) -> dict[tuple[int, int], fmpq_mat]:
    """Return D = keep / (1 - dropout_p) of each batch element and head, (q_len, k_len). Raises InputError."""
    found = keep_factor(dropout_p, keep, shape)
    factor = fmpq(found.numerator, found.denominator)
    return {(b, h): fmpq_mat(keep[b, h].astype(int).tolist()) * factor for b, h in np.ndindex(shape[:2])}
