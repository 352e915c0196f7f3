"""Triton's interpreter, made fit for kernels that no one here wrote: they are run as they are, so that what is missing
there has to be mended under them, in the interpreter itself.

Import this before a package's kernels: it switches the interpreter on. Five things differ from a GPU and are mended by
`repair`, each shown by a test of its own (`tests/test_public_triton.py`):

- `tl.dot` and the arithmetic of bfloat16 take the bit patterns for numbers (Triton 3.6 to 3.9);
- a cast from float32 to bfloat16 truncates, where a GPU rounds to the nearest;
- autotuning asks for a GPU: the first configuration is taken;
- a load outside of every tensor of the launch ends the process, or reads what lies beside them. Here it gives NaN (or
  the largest integer), and a store there is dropped: both are counted in `outside`.

What packages ask about devices (`as_if_on_a_gpu`, the capability) is answered too. It changes no number.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import contextmanager
from importlib import import_module

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

CAPABILITY = (8, 0)  # that of an A100: no tensor memory accelerator, which the interpreter has none of
outside: Counter[str] = Counter()
stock = {
    name: getattr(InterpreterBuilder, name)
    for name in ("create_dot", "cast_impl", "binary_op", "unary_op", "create_masked_load", "create_masked_store")
}
stock_arguments = GridExecutor._init_args_hst
stock_autotuner = Autotuner.__init__


def widened(bits):
    """Return bfloat16 bit patterns, uint16, as the float32 numbers that they are."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(numbers):
    """Return float32 numbers as bfloat16 bit patterns, uint16, rounded to nearest, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32).reshape(np.shape(numbers))
    even = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    nearest = (bits + even) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
    return np.where(np.isnan(numbers), quiet, nearest).astype(np.uint16)


def is_bfloat16(handle):
    return handle.dtype.scalar == tl.bfloat16


def wide(handle):
    return TensorHandle(widened(handle.data), tl.float32) if is_bfloat16(handle) else handle


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    return stock["create_dot"](self, wide(a), wide(b), d, input_precision, max_num_imprecise_acc)


def cast_impl(self, src, dst_type):
    if src.dtype.scalar == tl.float32 and dst_type.scalar == tl.bfloat16:
        return TensorHandle(rounded(src.data), tl.bfloat16)
    if is_bfloat16(src):
        widely = wide(src)
        return widely if dst_type.scalar == tl.float32 else stock["cast_impl"](self, widely, dst_type)
    return stock["cast_impl"](self, src, dst_type)


def binary_op(self, lhs, rhs, op):
    if not is_bfloat16(lhs):
        return stock["binary_op"](self, lhs, rhs, op)
    found = op(widened(lhs.data), widened(rhs.data))
    return TensorHandle(found, tl.int1) if found.dtype == np.bool_ else TensorHandle(rounded(found), tl.bfloat16)


def unary_op(self, arg, op):
    if not is_bfloat16(arg):
        return stock["unary_op"](self, arg, op)
    return TensorHandle(rounded(op(widened(arg.data))), tl.bfloat16)


def arguments(self, args_dev, kwargs):
    """Note where the tensors of a launch lie."""
    on_host, named = stock_arguments(self, args_dev, kwargs)
    bases = [getattr(x, "base", x) for x in (*on_host, *named.values())]
    storages = [x.untyped_storage() for x in bases if isinstance(x, torch.Tensor)]
    extents = sorted({(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages})
    interpreter.interpreter_builder.extents = np.array(extents, dtype=np.uint64).reshape(-1, 2)
    return on_host, named


def inside(builder, pointers):
    """Return which pointers lie in a tensor of the launch, whole elements, as a bool array."""
    addresses = pointers.data.astype(np.uint64)
    size = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
    starts, ends = builder.extents.T
    place = np.searchsorted(starts, addresses, side="right").astype(np.int64) - 1
    return (place >= 0) & (addresses + np.uint64(size) <= ends[np.maximum(place, 0)])


def create_masked_load(self, ptrs, mask, other, *policies):
    held = inside(self, ptrs)
    found = stock["create_masked_load"](self, ptrs, TensorHandle(mask.data & held, tl.int1), other, *policies)
    astray = mask.data & ~held
    if astray.any():
        outside["loads"] += int(astray.sum())
        found.data = np.where(astray, poison(found), found.data)
    return found


def create_masked_store(self, ptrs, value, mask, *policies):
    held = inside(self, ptrs)
    if astray := int((mask.data & ~held).sum()):
        outside["stores"] += astray
    return stock["create_masked_store"](self, ptrs, value, TensorHandle(mask.data & held, tl.int1), *policies)


def untuned(self, *given, **named):
    """Keep the first configuration of several: there is nothing to time."""
    stock_autotuner(self, *given, **named)
    del self.configs[1:]


def poison(handle):
    """Return what stands for memory that belongs to no one, in the handle's dtype."""
    if is_bfloat16(handle):
        return np.uint16(0x7FC0)
    kind = handle.data.dtype
    return kind.type(np.nan) if kind.kind == "f" else kind.type(np.iinfo(kind).max) if kind.kind in "iu" else True


def repair():
    """Put the mended operations into Triton's interpreter, and let numpy be as silent as a GPU."""
    np.seterr(all="ignore")
    warnings.filterwarnings("ignore", module="triton")
    for operation in (create_dot, cast_impl, binary_op, unary_op, create_masked_load, create_masked_store):
        setattr(InterpreterBuilder, operation.__name__, operation)
    GridExecutor._init_args_hst = arguments
    Autotuner.__init__ = untuned
    torch.cuda.get_device_capability = lambda device=None: CAPABILITY


@contextmanager
def as_if_on_a_gpu():
    """Let tensors say that they lie on a CUDA device, as packages demand."""
    torch.Tensor.is_cuda = property(lambda self: True)
    try:
        yield
    finally:
        del torch.Tensor.is_cuda


def interpreted(module):
    """Import a package's module, whose kernels are then the interpreter's."""
    return import_module(module)


repair()
