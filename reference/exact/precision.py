"""The working precision of ball arithmetic: where it starts, how it grows, where it gives up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flint import ctx

from attnspec.spec.dtypes import Format

PRECISION_CAP = 2**17
"""Bits of the last try. Ties are settled by sign, not by width, so no known finite input comes near."""

GUARD_BITS = 32
"""Spare bits of the first try: about one entry in 2^GUARD_BITS needs a second one."""

LIMB_BITS = 64
"""Arb computes in whole machine words; a precision between two multiples costs as much as the larger."""


class UndecidedError(ArithmeticError):
    """A result still straddles a rounding boundary at PRECISION_CAP bits; nothing is returned in its place."""


@contextmanager
def working_precision(bits: int) -> Iterator[None]:
    """Compute balls with `bits` bits inside the block, and restore python-flint's global precision after it."""
    before = ctx.prec
    ctx.prec = bits
    try:
        yield
    finally:
        ctx.prec = before


def first_precision(fmt: Format, terms: int) -> int:
    """Bits at which a sum of `terms` products is nearly always accurate enough to be rounded to `fmt`."""
    needed = fmt.precision + terms.bit_length() + GUARD_BITS
    return -(-needed // LIMB_BITS) * LIMB_BITS


def until_decided(attempt: Callable[[], float | None], start: int, what: str) -> float:
    """Call `attempt` with `start`, 2 `start`, ... bits of working precision until it returns a number, and return it.

    Raises UndecidedError, naming `what`, when PRECISION_CAP bits were not enough.
    """
    bits = min(start, PRECISION_CAP)
    while True:
        with working_precision(bits):
            result = attempt()
        if result is not None:
            return result
        if bits == PRECISION_CAP:
            raise UndecidedError(f"{what}: not decided at {bits} bits, the cap of the exact oracle")
        bits = min(2 * bits, PRECISION_CAP)
