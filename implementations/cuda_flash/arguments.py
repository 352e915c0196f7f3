"""The argument of every kernel: the struct `Call` of call.cuh, field by field."""

from __future__ import annotations

import ctypes

import torch

NO_MASK, BOOL_MASK, ADDITIVE_MASK = range(3)
TENSORS = (
    "query",
    "key",
    "value",
    "mask",
    "output",
    "grad_output",
    "grad_query",
    "grad_key",
    "grad_value",
    "grad_scores",
)
POINTERS = (
    "lse",
    "row_max",
    "row_sum",
    "part_output",
    "part_max",
    "part_sum",
    "grad_lse",
    "delta",
    "key_lengths",
)
INTEGERS = (
    "batch",
    "q_heads",
    "q_len",
    "kv_batch",
    "kv_heads",
    "k_len",
    "head_dim",
    "value_dim",
    "left",
    "right",
    "lower_right",
    "mask_kind",
    "splits",
)


class Strided(ctypes.Structure):
    """A tensor of rank 4: where it starts, and its strides in elements."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("batch", "head", "row", "column")),
    )


class Arguments(ctypes.Structure):
    """`Call` of call.cuh."""

    _fields_ = (
        *((name, Strided) for name in TENSORS),
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int) for name in INTEGERS),
        ("scale", ctypes.c_float),
    )


def arguments(tensors: dict[str, torch.Tensor | None], integers: dict[str, int], scale: float) -> Arguments:
    """Return the struct for tensors by the names of `TENSORS` (any strides) and `POINTERS` (contiguous), and integers
    by those of `INTEGERS`; null and 0 where none is given. The tensors must outlive the launch."""
    found = Arguments(scale=scale, **integers)
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if name in TENSORS:
            setattr(found, name, Strided(tensor.data_ptr(), *tensor.stride()))
        else:
            assert tensor.is_contiguous(), name
            setattr(found, name, tensor.data_ptr())
    return found
