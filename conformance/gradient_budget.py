"""The error budget of gradients: how far those of an honest kernel may lie from the exact ones (chapter "accuracy").

The budget is computed in float64 from the inputs of the backward pass alone, a block of query rows at a time.
`gradient_errors` says what is wrong with the terms of each sum, `gradient_sums` what the sum makes of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from attnspec.conformance.budget import BLOCK_ELEMENTS, arithmetic_of, distances_of, positions_of, sinks_as_keys
from attnspec.conformance.gradient_cap import below_cap
from attnspec.conformance.gradient_errors import Backward, Terms, WeightErrors, score_terms, step_of, weight_terms
from attnspec.conformance.gradient_sums import OverDistances, OverKeys, OverRows, OverSlots, Sums, row_ties
from attnspec.conformance.rows import Arithmetic, Rows, score_ties
from attnspec.reference import grouped_heads, masks
from attnspec.reference.attention import check_inputs
from attnspec.spec.call import Call
from attnspec.spec.dtypes import FLOAT16, format_of
from attnspec.spec.errors import InputError

HEADS_ELEMENTS = 2**15  # slots of heads that are taken together: many small heads cost what one does
LARGEST = torch.finfo(torch.float64).max


@dataclass(frozen=True)
class GradientBudget:
    """The largest errors the gradients of an honest kernel may have, float64, each of the shape of its input.

    attn_mask is None where the call has no mask or a bool one, sinks where it has none, alibi_slopes where none ask for
    a gradient. All are finite and not negative, whatever the inputs hold.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None


def gradient_budget(
    call: Call,
    grad_output: torch.Tensor,
    grad_lse: torch.Tensor | None = None,
    *,
    causal_alignment: str = "upper_left",
    accuracy: str = "fused",
) -> GradientBudget:
    """Return the budget of each element of the gradients of query, key, value, an additive attn_mask, sinks and slopes.

    call: any dtype of the spec. grad_output: (batch, q_heads, q_len, value_dim), what arrives at the output; grad_lse:
    (batch, q_heads, q_len), what arrives at the lse, None for 0. accuracy: `fused`, `eager` or `exact`. Elements that
    are not finite count as 0. Raises InputError for another class, for `exact` with a dtype other than float64, and
    for tensors that do not fit together. Rules: `accuracy.gradients-within-budget`, `accuracy.gradients-of-groups`,
    `accuracy.classes`. Source: Dao et al. 2022, appendix B.2 (the formulas); Higham and Mary 2019 (the bound).
    """
    check_inputs(call.query, call.key, call.value, call.enable_gqa)
    _check_gradients(call, grad_output, grad_lse)
    arithmetic = arithmetic_of(format_of(call.query.dtype), accuracy)
    shape = (*call.query.shape[:3], call.key.shape[-2])
    visible = masks.visible(shape, call.attn_mask, call.is_causal, causal_alignment, call.key_lengths, call.window_size)
    mask = None if call.attn_mask is None or call.attn_mask.dtype == torch.bool else call.attn_mask
    grads = _Gradients(call, mask, arithmetic)
    if 0 not in shape:
        inputs = _Inputs.of(call, mask, visible, grad_output, grad_lse)
        readers, owners = inputs.query.shape[:2]
        for heads, blocks in _blocks(owners, *shape[2:]):
            for reader in range(readers):
                for rows in blocks:
                    grads.add(inputs, reader, heads, rows)
                grads.end_head()
            grads.end_owners(inputs, heads)
        grads.finish(inputs)
    return grads.budget


@dataclass(frozen=True)
class _Inputs:
    """The tensors of a backward pass, finite float64, keys and values for every query head and 0 where no row sees
    them; with sinks, the last key is that of the sink. Each begins with (readers, owners): an owner is a head of the
    key, of which there are kv_batch * kv_heads, and its readers are the query heads that share it. place: b * q_heads
    + h. of_output: what grad_output is divided by; unit: what dS is."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    visible: torch.Tensor
    distance: torch.Tensor | None
    grad_output: torch.Tensor
    grad_lse: torch.Tensor
    place: torch.Tensor
    scale: float
    softcap: float | None
    of_output: float
    unit: float

    @classmethod
    def of(
        cls,
        call: Call,
        mask: torch.Tensor | None,
        visible: torch.Tensor,
        grad_output: torch.Tensor,
        grad_lse: torch.Tensor | None,
    ) -> _Inputs:
        """Return the tensors of a call and what comes back to it."""
        batch, q_heads, q_len, k_len = visible.shape
        shape = (batch, q_heads, q_len, k_len)
        seen = visible.any(-2)[..., None]  # (batch, q_heads, k_len, 1)
        key, value = (
            torch.where(seen, _finite(grouped_heads.expand(x, q_heads)).expand(batch, -1, -1, -1), 0.0)
            for x in (call.key, call.value)
        )
        value, of_value = _in_units(value)
        grad_output, of_output = _in_units(_finite(grad_output))
        grad_lse = torch.zeros(call.query.shape[:3]) if grad_lse is None else grad_lse
        bias = None if mask is None else _finite(masks.bias(shape, mask))
        positions = positions_of(call, shape)
        if positions is not None:
            bias = positions if bias is None else bias + positions
        if call.sinks is not None:
            key, value, bias, visible = sinks_as_keys(key, value, bias, visible, call.sinks)

        def by_owner(tensor: torch.Tensor) -> torch.Tensor:
            return _by_owner(tensor, call.key.shape[0], call.key.shape[1])

        return cls(
            query=by_owner(_finite(call.query)),
            key=by_owner(key),
            value=by_owner(value),
            bias=None if bias is None else by_owner(bias),
            visible=by_owner(visible),
            distance=by_owner(distances_of(call, shape)) if call.learned_slopes else None,
            grad_output=by_owner(grad_output),
            grad_lse=by_owner(_finite(grad_lse)[..., None] / of_value / of_output),
            place=by_owner(torch.arange(batch * q_heads).view(batch, q_heads, 1, 1))[..., 0, 0],
            scale=1 / math.sqrt(call.query.shape[-1]) if call.scale is None else call.scale,
            softcap=call.softcap,
            of_output=of_output,
            unit=of_value * of_output,
        )

    def block(self, reader: int, heads: slice, part: slice, arithmetic: Arithmetic) -> tuple[Rows, Backward]:
        """Return some query rows of some heads, and what comes back to them."""
        rows = Rows.of(
            self.query[reader, heads, part],
            self.key[reader, heads],
            self.value[reader, heads],
            None if self.bias is None else self.bias[reader, heads, part],
            self.visible[reader, heads, part],
            self.scale,
            arithmetic,
            self.softcap,
        )
        grad_output, grad_lse = self.grad_output[reader, heads, part], self.grad_lse[reader, heads, part]
        return rows, Backward(grad_output, grad_lse, self.value[reader, heads], self.unit)


class _Gradients:
    """The sums of all gradients of a call, and the budget they end in."""

    def __init__(self, call: Call, mask: torch.Tensor | None, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.q_heads, self.k_len = call.query.shape[1], call.key.shape[2]
        self.mask_shape = None if mask is None else (1,) * (4 - mask.ndim) + tuple(mask.shape)
        given = call.differentiable()
        self.stored = {name: _stored_as(arithmetic, x.dtype) for name, x in given.items()}
        least = {name: torch.full(x.shape, self.stored[name].tiny, dtype=torch.float64) for name, x in given.items()}
        self.budget = GradientBudget(**least)
        self.of_key, self.of_value = Sums(), Sums()  # of the owners at hand
        self.of_mask: defaultdict[tuple[int, int, int], Sums] = defaultdict(Sums)
        self.of_sinks: defaultdict[int, Sums] = defaultdict(Sums)
        self.of_slopes: defaultdict[tuple[int, ...], Sums] = defaultdict(Sums)

    def add(self, inputs: _Inputs, reader: int, heads: slice, part: slice) -> None:
        """Take in some query rows of some heads."""
        rows, backward = inputs.block(reader, heads, part, self.arithmetic)
        ties, equal_rows = score_ties(rows), row_ties(rows)
        errors = WeightErrors.of(rows, inputs.visible[reader, heads, part], ties)
        of_scores = score_terms(rows, errors, ties, backward)
        of_scaled = below_cap(rows, of_scores, step_of(rows, backward))
        of_query = Sums()
        of_query.add(of_scaled, OverKeys(inputs.scale * inputs.key[reader, heads]), ties)
        of_query.end_part()
        self.budget.query.view(-1, *inputs.query.shape[2:])[inputs.place[reader, heads], part] = _bound(
            of_query, self.arithmetic, inputs.unit, inputs.scale
        )
        self.of_key.add(of_scaled, OverRows(inputs.scale * inputs.query[reader, heads, part]), equal_rows)
        self.of_value.add(weight_terms(rows, errors), OverRows(backward.grad_output), equal_rows)
        for i, place in enumerate(inputs.place[reader, heads].tolist()):
            b, h = divmod(place, self.q_heads)
            most = torch.maximum(ties[i].amax(), equal_rows[i].amax())
            if self.mask_shape is not None:
                self.add_to_mask(of_scores.of_head(i, slice(self.k_len)), b, h, part.start, most)
            if self.budget.sinks is not None:
                self.of_sinks[h].add(of_scores.of_head(i, slice(self.k_len, None)), OverSlots(True, True), most)
            if self.budget.alibi_slopes is not None and inputs.distance is not None:
                far = OverDistances(inputs.distance[reader, heads, part][i : i + 1])
                slope = (b, h)[2 - self.budget.alibi_slopes.ndim :]
                self.of_slopes[slope].add(of_scores.of_head(i, slice(self.k_len)), far, most)

    def add_to_mask(self, terms: Terms, b: int, h: int, row: int, ties: torch.Tensor) -> None:
        """Take in some query rows of one head for the gradient of the mask."""
        assert self.mask_shape is not None, "an additive mask"
        shared = [size == 1 for size in self.mask_shape]
        where = (0 if shared[0] else b, 0 if shared[1] else h, 0 if shared[2] else row)
        self.of_mask[where].add(terms, OverSlots(shared[2], shared[3]), ties)

    def end_head(self) -> None:
        """Say that one query head of each owner is complete."""
        self.of_key.end_part()
        self.of_value.end_part()

    def end_owners(self, inputs: _Inputs, heads: slice) -> None:
        """Say that all readers of these owners are in, and turn their sums into bounds."""
        for budget, sums, unit, scale in (
            (self.budget.key, self.of_key, inputs.unit, inputs.scale),
            (self.budget.value, self.of_value, inputs.of_output, None),
        ):
            budget.view(-1, *budget.shape[2:])[heads] = _bound(sums, self.arithmetic, unit, scale)[:, : self.k_len]
        self.of_key, self.of_value = Sums(), Sums()

    def finish(self, inputs: _Inputs) -> None:
        """Turn the sums of the mask, of the sinks and of the slopes into bounds."""
        if self.budget.sinks is not None:
            for h, sums in self.of_sinks.items():
                self.budget.sinks[h] = _bound(sums, self.stored["sinks"], inputs.unit).squeeze()
        if self.budget.alibi_slopes is not None:
            for slope, sums in self.of_slopes.items():
                self.budget.alibi_slopes[slope] = _bound(sums, self.stored["alibi_slopes"], inputs.unit).squeeze()
        if self.mask_shape is None or self.budget.attn_mask is None:
            return
        of_mask = self.budget.attn_mask.view(self.mask_shape)
        for (b, h, row), sums in self.of_mask.items():
            bound = _bound(sums, self.stored["attn_mask"], inputs.unit)[0]
            of_mask[b, h, row : row + bound.shape[0]] = bound


def _by_owner(tensor: torch.Tensor, kv_batch: int, kv_heads: int) -> torch.Tensor:
    """Return (batch, q_heads, ...) as (readers, owners, ...): all query heads that read one head of the key."""
    batch, q_heads = tensor.shape[:2]
    apart = tensor.view(kv_batch, batch // kv_batch, kv_heads, q_heads // kv_heads, *tensor.shape[2:])
    return apart.permute(1, 3, 0, 2, 4, 5).reshape(-1, kv_batch * kv_heads, *tensor.shape[2:])


def _check_gradients(call: Call, grad_output: torch.Tensor, grad_lse: torch.Tensor | None) -> None:
    """Raise InputError where what comes back does not fit the call."""
    expected = (*call.query.shape[:3], call.value.shape[-1])
    if tuple(grad_output.shape) != expected:
        raise InputError(f"grad_output is {tuple(grad_output.shape)}: use the shape of the output, {expected}")
    if grad_lse is not None and tuple(grad_lse.shape) != expected[:3]:
        raise InputError(f"grad_lse is {tuple(grad_lse.shape)}: use the shape of the lse, {expected[:3]}")


def _bound(sums: Sums, arithmetic: Arithmetic, unit: float, scale: float | None = None) -> torch.Tensor:
    """Return the bound of a gradient as a finite number."""
    return sums.bound(arithmetic, unit, scale).nan_to_num(nan=LARGEST, posinf=LARGEST)


def _stored_as(arithmetic: Arithmetic, dtype: torch.dtype) -> Arithmetic:
    """Return the arithmetic of a kernel that stores its result in another dtype."""
    fmt = format_of(dtype)
    tiny = fmt.smallest_subnormal / 2 if fmt == FLOAT16 else fmt.smallest_normal
    return replace(arithmetic, output=fmt.unit_roundoff, tiny=tiny)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64, 0 where it is not finite."""
    return tensor.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _in_units(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return a tensor divided by a power of two near its largest magnitude, and that, so that squares stay finite."""
    largest = float(tensor.abs().amax()) if tensor.numel() else 0.0
    unit = 2.0 ** (math.frexp(largest)[1] - 1) if largest else 1.0
    return tensor / unit, unit


def _blocks(heads: int, q_len: int, k_len: int) -> Iterator[tuple[slice, list[slice]]]:
    """Yield slices of the heads, each with slices that cover its query rows, of about `HEADS_ELEMENTS` slots in all
    where one head has fewer, else of `BLOCK_ELEMENTS`."""
    together = max(1, HEADS_ELEMENTS // (q_len * k_len))
    size = max(1, min(q_len, BLOCK_ELEMENTS // k_len))
    rows = [slice(start, start + size) for start in range(0, q_len, size)]
    for first in range(0, heads, together):
        yield slice(first, first + together), rows
