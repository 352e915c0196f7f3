"""The error budget: how far the result of an honest kernel may lie from the exact one (chapter "accuracy").

The budget is computed in float64 from the inputs of the call alone. `Arithmetic` says what a kernel of an accuracy
class rounds, and how coarsely; `row_errors` turns that into a bound for each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attnspec.conformance.row_errors import lse_error, output_error
from attnspec.conformance.rows import PATH_BLOCKS, Arithmetic, Rows, score_ties
from attnspec.reference import alibi, grouped_heads, lengths, masks
from attnspec.reference.attention import check_inputs
from attnspec.spec.call import Call
from attnspec.spec.dtypes import FLOAT16, FLOAT32, FLOAT64, Format, format_of
from attnspec.spec.errors import InputError

ACCURACY_CLASSES = ("fused", "eager", "exact")

EXP_ROUNDOFFS = 4  # error of one exponential, in unit roundoffs: 2 ulp, PTX ISA `ex2.approx`, CUDA guide `__expf`
FAST_EXP = 2.0**-13  # relative; a cubic 2^x on [0, 1) with p(0) = 1 errs by 8.7e-5 = 2^-13.5 (FlashAttention-4)
FAST_TANH = 2.0**-11  # relative; PTX ISA `tanh.approx.f32` (rule `accuracy.softcap-16-bit`)
FAST_LSE = 2.0**-12  # absolute, for 16-bit inputs (rule `accuracy.lse-16-bit`)

BLOCK_ELEMENTS = 2**21  # numbers in one block of rows, so that a long case needs megabytes and not gigabytes


@dataclass(frozen=True)
class Budget:
    """The largest errors an honest kernel may have.

    output: float64 (batch, q_heads, q_len, value_dim). lse: float64 (batch, q_heads, q_len), 0 for a row that sees no
    key. Both are finite and not negative, whatever the inputs hold.
    """

    output: torch.Tensor
    lse: torch.Tensor


def error_budget(
    call: Call, *, causal_alignment: str = "upper_left", accuracy: str = "fused", store: bool = True
) -> Budget:
    """Return the budget of each element of the output and the lse.

    call: any dtype of the spec. accuracy: `fused`, `eager` or `exact`. store: False for a kernel that returns a 16-bit
    call's output in float32. Elements that are not finite count as 0: whether NaN and infinity arrive where they must
    is not the budget's question. Raises InputError for another class, for `exact` with a dtype other than float64, and
    for a call that does not fit together. Rules: `accuracy.output-within-budget`, `accuracy.lse-within-budget`,
    `accuracy.classes`. Source: Higham and Mary 2019; Ipsen and Zhou 2020.
    """
    check_inputs(call.query, call.key, call.value, call.enable_gqa)
    batch, q_heads, q_len, head_dim = call.query.shape
    k_len, value_dim = call.value.shape[-2:]
    arithmetic = arithmetic_of(format_of(call.query.dtype), accuracy, store)
    output = torch.full((batch, q_heads, q_len, value_dim), arithmetic.tiny, dtype=torch.float64)
    lse = torch.zeros((batch, q_heads, q_len), dtype=torch.float64)
    if 0 in (q_len, k_len, value_dim):
        return Budget(output, lse)
    scale = 1 / math.sqrt(head_dim) if call.scale is None else call.scale
    shape = (batch, q_heads, q_len, k_len)
    visible = masks.visible(shape, call.attn_mask, call.is_causal, causal_alignment, call.key_lengths, call.window_size)
    if call.key_lengths is not None:
        call = call.but(
            **{x: lengths.clear_absent(getattr(call, x), batch, call.key_lengths) for x in ("key", "value")}
        )
    positions = positions_of(call, shape)
    for b in range(batch):
        query, key, value = (_head_tensor(x, b, q_heads) for x in (call.query, call.key, call.value))
        bias, seen = _bias(call.attn_mask, shape, b), visible[b]
        if positions is not None:
            bias = (0.0 if bias is None else bias) + positions[b]
        if call.sinks is not None:
            key, value, bias, seen = sinks_as_keys(key, value, bias, seen, call.sinks)
        for heads, rows in _blocks(q_heads, q_len, k_len + 2 * PATH_BLOCKS * value_dim):
            block = Rows.of(
                query[heads, rows],
                key[heads],
                value[heads],
                None if bias is None else bias[heads, rows],
                seen[heads, rows],
                scale,
                arithmetic,
                call.softcap,
            )
            ties = score_ties(block)
            output[b, heads, rows] = output_error(block, ties)
            lse[b, heads, rows] = lse_error(block, ties)
    return Budget(output, lse)


def arithmetic_of(fmt: Format, accuracy: str = "fused", store: bool = True) -> Arithmetic:
    """Return what a kernel of an accuracy class rounds when its tensors have this format.

    Raises InputError for an unknown class, or for `exact` with a format that is not float64. Rules:
    `accuracy.classes`, `accuracy.weights-rounded-once`, `accuracy.subnormals`.
    """
    if accuracy not in ACCURACY_CLASSES:
        raise InputError(f"accuracy is {accuracy!r}: use one of {', '.join(ACCURACY_CLASSES)}")
    if accuracy == "exact" and fmt != FLOAT64:
        raise InputError(f"accuracy is 'exact' and the dtype {fmt.name}: use it with float64")
    work = FLOAT64 if fmt == FLOAT64 else FLOAT32
    narrow = fmt.bits == 16
    eager = accuracy == "eager"
    output = fmt if store else work
    gradual = output == FLOAT16  # keeps its subnormals; the others may flush them
    return Arithmetic(
        work=work.unit_roundoff,
        output=output.unit_roundoff,
        scores=fmt.unit_roundoff if eager else 0.0,
        weights=fmt.unit_roundoff if eager or narrow else 0.0,
        tanh=FAST_TANH if narrow and not eager else 0.0,
        weights_step=fmt.smallest_subnormal / 2,
        weights_lost=fmt.smallest_subnormal / 2 if fmt == FLOAT16 else work.smallest_normal,
        exponential=EXP_ROUNDOFFS * work.unit_roundoff + (FAST_EXP if narrow else 0.0),
        lse=FAST_LSE if narrow else EXP_ROUNDOFFS * work.unit_roundoff,
        drifts=narrow,
        flushed=work.smallest_normal,
        tiny=fmt.smallest_subnormal / 2 if gradual else output.smallest_normal,
    )


def positions_of(call: Call, shape: tuple[int, int, int, int]) -> torch.Tensor | None:
    """Return what ALiBi adds to the scores, float64 (batch, q_heads, q_len, k_len) = shape; None without slopes. Rule:
    `alibi.bias`."""
    if call.alibi_slopes is None:
        return None
    added = alibi.of_scores(
        shape, call.alibi_slopes, form=call.alibi_form, alignment=call.alibi_alignment, key_lengths=call.key_lengths
    )
    return added.expand(shape)


def distances_of(call: Call, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """Return how far each key lies from the diagonal of ALiBi, float64 (batch, q_heads, q_len, k_len) = shape. Rules:
    `alibi.form`, `alibi.offset`."""
    far = alibi.distance(*shape[2:], form=call.alibi_form, alignment=call.alibi_alignment, key_lengths=call.key_lengths)
    return far.double().expand(shape)


def sinks_as_keys(
    key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, visible: torch.Tensor, sinks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return key, value, bias and visible set with one more key, the last, whose score is the sink and whose value 0.

    key, value: (..., q_heads, k_len, dim); bias, visible: (..., q_heads, q_len, k_len); sinks: (q_heads,), -inf for
    none. Rule: `sinks.weight`.
    """
    column = sinks.double()[:, None, None].expand(*visible.shape[:-1], 1)
    bias = torch.zeros(visible.shape, dtype=torch.float64) if bias is None else bias
    key, value = (F.pad(x, (0, 0, 0, 1)) for x in (key, value))
    finite = torch.where(column.isfinite(), column, 0.0)
    return key, value, torch.cat([bias, finite], -1), torch.cat([visible, column != -torch.inf], -1)


def _head_tensor(tensor: torch.Tensor, b: int, q_heads: int) -> torch.Tensor:
    """Return one batch entry with a head for every query head, finite float64 (q_heads, length, dim)."""
    entry = tensor[b : b + 1] if tensor.shape[0] > b else tensor[:1]  # a batch of 1 serves all
    expanded = grouped_heads.expand(entry, q_heads)[0].double()
    return expanded.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _bias(attn_mask: torch.Tensor | None, shape: tuple[int, int, int, int], b: int) -> torch.Tensor | None:
    """Return what is added to one batch entry's scores, float64 (q_heads, q_len, k_len), or None where nothing is."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return None
    return masks.broadcast(attn_mask, shape)[b].double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _blocks(q_heads: int, q_len: int, row_elements: int) -> Iterator[tuple[slice, slice]]:
    """Yield (heads, rows) slices that cover all query rows in blocks of about `BLOCK_ELEMENTS` numbers."""
    rows = max(1, min(q_len, BLOCK_ELEMENTS // row_elements))
    heads = max(1, BLOCK_ELEMENTS // (row_elements * rows))
    for first_head in range(0, q_heads, heads):
        for first_row in range(0, q_len, rows):
            yield slice(first_head, first_head + heads), slice(first_row, first_row + rows)
