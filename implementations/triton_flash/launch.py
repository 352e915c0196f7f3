"""How a kernel is run: in the interpreter with a fixed tile, on a GPU with the best of some tiles, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton

from attnspec.implementations.triton_flash import interpreter
from attnspec.spec.errors import InputError

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
TUNED_BY = ["HEAD_WIDTH", "VALUE_WIDTH", "GROUP"]
MOST_KEYS = max(configuration.kwargs["KEYS"] for configuration in CONFIGURATIONS)
SHORT = 512  # rows and keys of a call that is not worth the trying


def width_of(dim: int) -> int:
    """Return the width of the tiles that hold a head dimension: the next power of two, 16 or more."""
    return max(int(triton.next_power_of_2(dim)), SMALLEST)


def tile_of(rows: int, keys: int, width: int, split_keys: int | None = None) -> tuple[int, int] | None:
    """Return the tile, rows and keys, for so many rows and keys of a head dimension; None where trying has to tell.

    In the interpreter it is as large as they are, within limits; on a GPU a short call takes a small one. split_keys:
    what the keys of a tile divide.
    """
    most = LARGEST if split_keys is None else min(split_keys & -split_keys, LARGEST)  # a power of two
    if INTERPRETED:
        return min(width_of(rows), LARGEST), min(width_of(keys), most)
    if max(rows, keys) <= SHORT or most < MOST_KEYS:
        side = 64 if width <= 64 else 32
        return min(width_of(rows), side), min(side, most)
    return None


def check_tile(tile: tuple[int, int] | None, split_keys: int | None) -> None:
    """Raise InputError unless a tile has rows and keys, each a power of two, and splits are whole tiles."""
    if tile is not None and (len(tile) != 2 or any(size != width_of(size) for size in tile)):
        raise InputError(f"tile is {tile}: use (rows, keys), each a power of two from {SMALLEST} on")
    keys = SMALLEST if tile is None else tile[1]
    if split_keys is not None and (split_keys < 1 or split_keys % keys):
        raise InputError(f"split_keys is {split_keys}: use a multiple of {keys}")


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
