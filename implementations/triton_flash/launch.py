"""How a kernel is run: in the interpreter with a fixed tile, on a GPU with the best of some tiles, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton

from attnspec.implementations.triton_flash import interpreter

Grid = Callable[[dict[str, Any]], tuple[int, ...]]

INTERPRETED = bool(interpreter.INTERPRETED)
LARGEST = 256  # rows and keys of a tile in the interpreter, where the number of tiles is what costs
SPLIT_KEYS = 512  # of a split of long sequences of pages
SMALLEST = 16  # of a dimension of a product of tiles
CONFIGURATIONS = tuple(
    triton.Config({"ROWS": rows, "KEYS": keys}, num_warps=warps, num_stages=stages)
    for rows, keys, warps, stages in (
        (128, 128, 8, 2),
        (128, 128, 8, 3),
        (128, 64, 4, 3),
        (128, 64, 8, 3),
        (128, 32, 4, 3),
        (64, 128, 4, 3),
        (64, 64, 4, 3),
        (64, 32, 4, 2),
        (32, 64, 4, 2),
        (16, 64, 4, 2),
        (16, 128, 4, 3),
        (16, 16, 4, 1),
    )
)
TUNED_BY = ["HEAD_WIDTH", "VALUE_WIDTH", "GROUP", "q_len", "k_len"]


def width_of(dim: int) -> int:
    """Return the width of the tiles that hold a head dimension: the next power of two, 16 or more."""
    return max(int(triton.next_power_of_2(dim)), SMALLEST)


def tile_of(rows: int, keys: int) -> tuple[int, int]:
    """Return the tile that the interpreter takes for so many rows and keys: as large as they are, within limits."""
    return min(width_of(rows), LARGEST), min(width_of(keys), LARGEST)


def run(kernel: Any, grid: Grid, arguments: dict[str, Any]) -> None:
    """Run a kernel. grid: from the arguments to the number of programs, none of which is no work.

    On a GPU a kernel whose ROWS or KEYS are not among the arguments tries `CONFIGURATIONS` once for each kind of call.
    """
    if INTERPRETED:
        if all(grid(arguments)):
            interpreter.launch(kernel, grid(arguments), arguments)
        return
    device = next(x.device for x in arguments.values() if isinstance(x, torch.Tensor))
    if all(grid({"ROWS": SMALLEST, "KEYS": SMALLEST} | arguments)):
        with torch.cuda.device(device):
            (kernel if "ROWS" in arguments else tuned(kernel))[grid](**arguments)


@cache
def tuned(kernel: Any) -> Any:
    """Return the kernel with its configurations, the best of which it finds by trying."""
    return triton.autotune(list(CONFIGURATIONS), key=TUNED_BY)(kernel)
