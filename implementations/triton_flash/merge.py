"""The merge kernel: outputs and lse over disjoint parts of the keys give those over all of them.

Read it beside "Merging" of chapter "FlashAttention". Source: Milakov and Gimelshein 2018, section 3.1; Dao, Haziza,
Massa and Sizov 2023, "Flash-Decoding for long-context inference".
"""

from typing import Any

import torch
import triton
import triton.language as tl

from attnspec.implementations.triton_flash import launch
from attnspec.implementations.triton_flash.interpreter import round_to
from attnspec.implementations.triton_flash.tiles import load_tile, store_tile
from attnspec.spec.errors import InputError

ROWS_OF_TILE = 64


@triton.jit
def merge_parts(
    outputs,
    lses,
    output,
    lse,
    rows,
    parts,
    VALUE_DIM: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the merged output and lse of a tile of rows. Grid: (tiles of rows,). outputs: (parts, rows, VALUE_DIM)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    wide = lses.dtype.element_ty
    top = tl.full([ROWS], -float("inf"), wide)
    total = tl.zeros([ROWS], wide)
    mixed = tl.zeros([ROWS, VALUE_WIDTH], wide)
    for part in range(parts):
        place = part * rows + row
        part_lse = tl.load(lses + place, mask=there, other=-float("inf"))
        seen = there & (part_lse > -float("inf"))  # a part without keys adds nothing, whatever its output holds
        tile = load_tile(outputs, place * VALUE_DIM, seen, 1, VALUE_DIM, VALUE_WIDTH, False).to(wide)
        higher = tl.maximum(top, part_lse)
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        weight, rescale = tl.exp(part_lse - shift), tl.exp(top - shift)
        total = rescale * total + weight
        mixed = rescale[:, None] * mixed + weight[:, None] * tile
        top = higher
    divisor = tl.where(total == 0, 1.0, total)
    merged = mixed / divisor[:, None]
    if output.dtype.element_ty != wide:
        merged = round_to(merged, output.dtype.element_ty)
    store_tile(output, row * VALUE_DIM, there, 1, merged, VALUE_DIM, VALUE_WIDTH)
    tl.store(lse + row, top + tl.log(divisor), mask=there)


def merge(
    outputs: torch.Tensor, lses: torch.Tensor, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and lse over the union of disjoint parts of the keys.

    outputs: (parts, batch, heads, q_len, value_dim), any floating dtype; lses: (parts, batch, heads, q_len), float32,
    float64 for float64 outputs, -inf for a row that sees no key of the part. dtype: of the output, by default that of
    outputs. Returns output (batch, heads, q_len, value_dim) and lse (batch, heads, q_len). Raises InputError where the
    shapes do not fit. Rules: `flash.merge-associative`, `flash.merge-empty`, `flash.merge-gap`.
    """
    if outputs.shape[:-1] != lses.shape or outputs.ndim < 2 or lses.dtype not in (torch.float32, torch.float64):
        given = f"outputs {tuple(outputs.shape)}, lses {lses.dtype} {tuple(lses.shape)}"
        raise InputError(f"{given}: use (parts, ..., value_dim) and float32 or float64 (parts, ...)")
    output = outputs.new_empty(outputs.shape[1:], dtype=dtype or outputs.dtype)
    lse = lses.new_empty(lses.shape[1:])
    rows, value_dim = lse.numel(), outputs.shape[-1]
    arguments: dict[str, Any] = {"outputs": outputs.contiguous(), "lses": lses.contiguous()}
    arguments |= {"output": output, "lse": lse, "rows": rows, "parts": len(outputs)}
    arguments |= {"VALUE_DIM": value_dim, "VALUE_WIDTH": launch.width_of(value_dim), "ROWS": ROWS_OF_TILE}
    launch.run(merge_parts, lambda _: (triton.cdiv(rows, ROWS_OF_TILE),), arguments)
    return output, lse
