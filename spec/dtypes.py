"""The number formats of tensors, by PyTorch's names (rule `notation.dtypes`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnspec.spec.errors import InputError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Format:
    """A binary floating-point format, as IEEE 754 describes one.

    precision: bits of the significand, the hidden one included; emin, emax: exponents of the smallest and largest
    normal numbers; bits: storage width.
    """

    name: str
    precision: int
    emin: int
    emax: int
    bits: int

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of one rounding to nearest, u = 2^-precision."""
        return 2.0**-self.precision

    @property
    def smallest_normal(self) -> float:
        """2^emin."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """Distance between neighbours below `smallest_normal`."""
        return 2.0 ** (self.emin - self.precision + 1)

    @property
    def largest(self) -> float:
        """Largest finite number."""
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype of the same name (imports torch)."""
        import torch

        return getattr(torch, self.name)  # type: ignore[no-any-return]


FLOAT64 = Format("float64", 53, -1022, 1023, 64)
FLOAT32 = Format("float32", 24, -126, 127, 32)
BFLOAT16 = Format("bfloat16", 8, -126, 127, 16)
FLOAT16 = Format("float16", 11, -14, 15, 16)

FORMATS = {f.name: f for f in (FLOAT32, BFLOAT16, FLOAT16, FLOAT64)}
ALIASES = {"fp64": "float64", "f64": "float64", "fp32": "float32", "f32": "float32"} | {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
}


def format_named(name: str) -> Format:
    """Return the format called `name`, PyTorch's name or a usual short one (`bf16`, `fp16`).

    Raises InputError for a name that is neither.
    """
    name = ALIASES.get(name, name)
    if name not in FORMATS:
        raise InputError(f"unknown dtype {name!r}: use one of {', '.join(FORMATS)}")
    return FORMATS[name]


def format_of(dtype: torch.dtype) -> Format:
    """Return the format of a torch dtype. Raises InputError for one the spec does not cover."""
    return format_named(str(dtype).removeprefix("torch."))
