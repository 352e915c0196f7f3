"""Where Triton's interpreter computes otherwise than a compiled kernel does, and what makes it right.

`TRITON_INTERPRET=1` runs a kernel in numpy, on the CPU. Four traps of it (measured on 3.6 to 3.9), each met once here:

- `tl.dot` of bfloat16 multiplies the bit patterns: `dot` widens the operands to float32, which is exact.
- a cast of float32 to bfloat16 cuts off instead of rounding: `round_to` rounds to nearest, ties to even.
- a load or store outside of every tensor ends the process: `launch` holds each to one of the tensors it was given.
- after a kernel it copies the storage of every tensor onto itself, all of it: `launch` hands over addresses instead.

INTERPRETED is a constant of the compiler, so that nothing of this is in compiled code.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def dot(a, b):
    """Return the product of two tiles, summed in float32, without the short cut of TF32."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """Return float32 numbers rounded to a dtype, to nearest with ties to even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        bits = tl.where(x == x, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7FC0)
        rounded = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        rounded = x.to(dtype)
    return rounded


def launch(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """Run a kernel in the interpreter. Raises triton's InterpreterError, which names the address, where it would read
    or write outside of the tensors among its arguments."""
    tensors = [x for x in arguments.values() if isinstance(x, torch.Tensor)]
    handed = {name: interpreter._implicit_cvt(x) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    with kept_inside(tensors), without_waste(), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, where a row has only NaN
        kernel[grid](**handed)


@contextmanager
def kept_inside(tensors: list[torch.Tensor]) -> Iterator[None]:
    """While this lasts, the interpreter raises IndexError for a tile of addresses that is not inside one tensor."""
    builder = interpreter.interpreter_builder
    spans = [span(x) for x in tensors if x.numel()]
    load, store = builder.create_masked_load, builder.create_masked_store

    def check(pointers: Any, mask: Any) -> None:
        taken = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        if taken.size:
            first, last = int(taken.min()), int(taken.max())
            if not any(start <= first and last < end for start, end in spans):
                raise IndexError(f"a tile reaches from {first:#x} to {last:#x}, outside of every tensor of the call")

    def checked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(pointers, mask, *rest)

    def checked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    try:
        yield
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store


@contextmanager
def without_waste() -> Iterator[None]:
    """While this lasts, the interpreter prepares triton.language once a module, not at each call of a helper, and does
    not work out overflows that it asserts nowhere: together three quarters of its time."""
    prepare, prepared = interpreter._patch_lang, set()
    nothing_to_restore = interpreter._LangPatchScope
    builder = interpreter.interpreter_builder
    options = builder.options

    def prepare_once(function: Any) -> Any:
        if id(function.__globals__) in prepared:
            return nothing_to_restore()
        prepared.add(id(function.__globals__))
        return prepare(function)

    interpreter._patch_lang, builder.options = prepare_once, replace(options, sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter._patch_lang, builder.options = prepare, options


def span(x: torch.Tensor) -> tuple[int, int]:
    """Return the addresses between which the elements of a tensor lie, first and behind the last, in bytes."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()
