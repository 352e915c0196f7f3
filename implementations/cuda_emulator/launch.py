"""Launch the kernels of a compiled file on torch tensors, through ctypes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnspec.implementations.cuda_emulator.places import place_of
from attnspec.implementations.cuda_emulator.sanitizers import findings, watch_undefined
from attnspec.implementations.gpu_limits import MOST_SHARED, MOST_THREADS
from attnspec.spec.errors import InputError

MOST_BLOCKS = 2**31 - 1  # along one side of a grid
SCALARS: dict[tuple[str, int], Any] = {
    ("i", 1): ctypes.c_int8,
    ("i", 2): ctypes.c_int16,
    ("i", 4): ctypes.c_int32,
    ("i", 8): ctypes.c_int64,
    ("u", 1): ctypes.c_uint8,
    ("u", 2): ctypes.c_uint16,
    ("u", 4): ctypes.c_uint32,
    ("u", 8): ctypes.c_uint64,
    ("f", 4): ctypes.c_float,
    ("f", 8): ctypes.c_double,
}
WORDS = {"p": "pointer", "f": "float", "i": "int", "u": "unsigned", "s": "struct"}


class KernelFault(RuntimeError):
    """What the emulator or a sanitizer found wrong in a kernel while it ran, in one line with file and line."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. kind: p pointer, f floating, i signed, u unsigned, s structure; size in bytes."""

    kind: str
    size: int

    def __str__(self) -> str:
        return WORDS[self.kind] + (f"{8 * self.size}" if self.kind in "fiu" else "")


class Library:
    """The kernels of one CUDA file, compiled for the CPU. One launch runs at a time, in the thread that asks for it."""

    def __init__(self, path: Path, entries: tuple[str, ...], sanitize: str | None = None) -> None:
        """path: the shared object; entries: the names of its kernels; sanitize: what it was compiled with."""
        self.path = path
        self.entries = entries
        self.sanitize = sanitize
        self._code = ctypes.CDLL(str(path))
        self._lock = threading.Lock()
        if sanitize is not None:
            watch_undefined()

    def parameters(self, kernel: str) -> tuple[Parameter, ...]:
        """Return the parameters of a kernel. Raises InputError for a name that the file does not define."""
        if kernel not in self.entries:
            raise InputError(f'no kernel {kernel!r}: the file has {", ".join(self.entries)} (as extern "C" __global__)')
        told = getattr(self._code, f"cuda_emulator_signature_{kernel}")
        told.restype = ctypes.c_char_p
        words: list[str] = told().decode().split()
        return tuple(Parameter(word[0], int(word[1:])) for word in words)

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        args: Sequence[Any],
        seed: int | None = None,
    ) -> None:
        """Run a kernel over a grid, to its end.

        grid, block: 1 to 3 numbers, x first. shared_bytes: of dynamic shared memory. args: in the order of the
        parameters; a CPU tensor for a pointer (its data_ptr), None for a null pointer, a ctypes value or a plain number
        for a scalar. seed: permutes the order of blocks and threads; None and 0 run them in order. Raises InputError,
        one line, where they do not fit the kernel, and KernelFault where the kernel does what it must not: a deadlock,
        a divergent barrier, a wrong mask of lanes, a write past shared memory, what a sanitizer tells.
        """
        wanted = self.parameters(kernel)
        if len(args) != len(wanted):
            told = ", ".join(map(str, wanted))
            raise InputError(f"kernel {kernel} takes {len(wanted)} arguments ({told}), and {len(args)} were given")
        values = [_value(kernel, i, given, wanted[i]) for i, given in enumerate(args)]
        blocks, threads = _extent(kernel, "grid", grid), _extent(kernel, "block", block)
        if threads[0] * threads[1] * threads[2] > MOST_THREADS:
            raise InputError(f"kernel {kernel}: a block of {tuple(block)} is over {MOST_THREADS} threads")
        if not 0 <= shared_bytes <= MOST_SHARED:
            raise InputError(f"kernel {kernel}: {shared_bytes} bytes of dynamic shared memory: use 0 to {MOST_SHARED}")
        addresses = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        run = getattr(self._code, f"cuda_emulator_launch_{kernel}")
        run.restype = ctypes.c_char_p
        with self._lock:
            fault = run(
                (ctypes.c_uint * 3)(*blocks),
                (ctypes.c_uint * 3)(*threads),
                ctypes.c_ulong(shared_bytes),
                ctypes.c_ulong(seed or 0),
                addresses,
            )
            reported = findings() if self.sanitize else ()
        if reported:
            raise KernelFault(_shown("; ".join(reported)))
        if fault:
            raise KernelFault(_shown(f"{kernel}: {self._placed(fault.decode())}"))

    def _placed(self, fault: str) -> str:
        """Return a fault that begins with an address in the code, `+0x12: `, with its place in the kernel instead."""
        address, _, what = fault.partition(": ")
        if not fault.startswith("+0x"):
            return fault
        place = place_of(str(self.path), int(address[1:], 16))
        return f"{place}: {what}" if place else what


def _shown(fault: str) -> str:
    """Return a fault with the paths of files below the working folder as the user writes them."""
    return fault.replace(f"{Path.cwd()}/", "")


def _extent(kernel: str, what: str, given: Sequence[int]) -> tuple[int, int, int]:
    if not 1 <= len(given) <= 3 or not all(isinstance(x, int) and 1 <= x <= MOST_BLOCKS for x in given):
        raise InputError(f"kernel {kernel}: the {what} is {tuple(given)}: use 1 to 3 numbers, each 1 or more")
    x, y, z, *_ = (*given, 1, 1)
    return x, y, z


def _value(kernel: str, index: int, given: Any, wanted: Parameter) -> Any:
    """Return an argument as a ctypes value of the parameter's size. Raises InputError where it does not fit."""
    where = f"kernel {kernel}, argument {index + 1} of type {wanted}"
    if isinstance(given, torch.Tensor):
        if wanted.kind != "p":
            raise InputError(f"{where}: a tensor was given")
        if given.device.type != "cpu":
            raise InputError(f"{where}: the tensor is on {given.device}, and the emulator takes those of the cpu")
        return ctypes.c_void_p(given.data_ptr())
    if given is None and wanted.kind == "p":
        return ctypes.c_void_p(None)
    scalar = SCALARS.get((wanted.kind, wanted.size))
    if isinstance(given, (int, float)) and scalar is not None:
        if isinstance(given, float) and wanted.kind != "f":
            raise InputError(f"{where}: {given!r} was given, which is no whole number")
        return scalar(given)
    if isinstance(given, (ctypes._SimpleCData, ctypes.Structure)) and ctypes.sizeof(given) == wanted.size:
        return given
    raise InputError(f"{where}: {type(given).__name__} was given, which does not fit")
