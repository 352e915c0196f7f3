"""Which builds of flash.cu there are: one for each dtype and padded head dimension."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

SOURCE = Path(__file__).parent / "flash.cu"
TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
DIMS = (32, 64, 128, 256)
THREADS = 128
WARPS = 4
Grid = tuple[int, int, int]
KERNELS = (
    "attention_forward",
    "attention_merge",
    "attention_delta",
    "attention_backward_query",
    "attention_backward_key_value",
)


class Build(NamedTuple):
    """A dtype and a padded head dimension, one of `DIMS`."""

    dtype: torch.dtype
    dim: int

    @property
    def name(self) -> str:
        """Return what a table calls it, `float32 d64`."""
        return f"{str(self.dtype).removeprefix('torch.')} d{self.dim}"

    def macros(self) -> dict[str, str]:
        """Return the macros that flash.cu is compiled with."""
        return {"DTYPE": TYPES[self.dtype], "PADDED_DIM": str(self.dim)}


class Sizes(NamedTuple):
    """What kernel `attention_sizes` writes: rows, or keys, of a block, and the shared memory that it needs."""

    forward_rows: int
    forward_bytes: int
    backward_rows: int
    backward_bytes: int


def build_for(dtype: torch.dtype, head_dim: int) -> Build:
    """Return the build for a head dimension of 1 to 256, the larger one of keys and values."""
    return Build(dtype, next(dim for dim in DIMS if head_dim <= dim))
