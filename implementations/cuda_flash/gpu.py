"""Launch the kernels on a GPU. No GPU has run this module yet: `gpu_check` is what a machine with one runs first."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnspec.implementations.cuda_flash.arguments import Arguments
from attnspec.implementations.cuda_flash.builds import SOURCE, THREADS, Build, Grid, Sizes
from attnspec.implementations.cuda_flash.compile import compile_cubin, cuda_core
from attnspec.spec.errors import Unavailable

FREE_BYTES = 48 << 10  # of dynamic shared memory; a kernel that takes more says so beforehand


class OnGpu:
    """Queues kernels on the current stream of one GPU, compiled for it on first use.

    source: a file in place of flash.cu. Raises InputError and Unavailable as `compile_cubin` does, and Unavailable
    where the driver refuses.
    """

    def __init__(self, index: int, source: Path = SOURCE) -> None:
        self.index = index
        self.source = source
        self._code = cache(self._compiled)
        self._function = cache(self._loaded)
        self.sizes = cache(self._sizes)

    def launch(self, build: Build, kernel: str, grid: Grid, shared_bytes: int, call: Arguments) -> None:
        """Queue a kernel; its tensors stay those of the caller, used on the current stream."""
        self.queue(build, kernel, grid, (THREADS, 1, 1), shared_bytes, [call])

    def queue(
        self, build: Build, kernel: str, grid: Grid, block: Grid, shared_bytes: int, arguments: Sequence[Any]
    ) -> None:
        """Queue a kernel of any arguments: tensors, and ctypes values."""
        driver = importlib.import_module("cuda.bindings.driver")
        values = [ctypes.c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else x for x in arguments]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        with torch.cuda.device(self.index):
            cuda_core().Device(self.index).set_current()  # torch's backward pass runs in a thread of its own
            function = self._function(build, kernel, shared_bytes)
            stream = torch.cuda.current_stream().cuda_stream
            at = ctypes.addressof(addresses)
            _check(driver.cuLaunchKernel(function, *grid, *block, shared_bytes, stream, at, 0))

    def _compiled(self, build: Build) -> Any:
        major, minor = torch.cuda.get_device_capability(self.index)
        return compile_cubin(build, f"sm_{major}{minor}", self.source).code

    def _loaded(self, build: Build, kernel: str, shared_bytes: int) -> Any:
        driver = importlib.import_module("cuda.bindings.driver")
        handle = driver.CUkernel(int(self._code(build).get_kernel(kernel).handle))
        (function,) = _check(driver.cuKernelGetFunction(handle))
        if shared_bytes > FREE_BYTES:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuFuncSetAttribute(function, most, shared_bytes))
        return function

    def _sizes(self, build: Build) -> Sizes:
        sizes = torch.zeros(len(Sizes._fields), dtype=torch.int32, device=f"cuda:{self.index}")
        self.queue(build, "attention_sizes", (1, 1, 1), (1, 1, 1), 0, [sizes])
        return Sizes(*sizes.tolist())


@cache
def on_gpu(index: int) -> OnGpu:
    """Return the launcher of a GPU."""
    return OnGpu(index)


def _check(returned: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a call of the driver gives beside its status. Raises Unavailable where the status is an error."""
    status, *values = returned
    if int(status) != 0:
        raise Unavailable(f"the CUDA driver says {status!r}")
    return tuple(values)
