"""Launch the kernels on a GPU. No GPU has run this module yet: `gpu_check` is what a machine with one runs first."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from attnspec.implementations.cuda_flash.arguments import Arguments
from attnspec.implementations.cuda_flash.builds import THREADS, Build, Sizes
from attnspec.implementations.cuda_flash.compile import compile_cubin, cuda_core
from attnspec.spec.errors import Unavailable

FREE_BYTES = 48 << 10  # of dynamic shared memory; a kernel that takes more says so beforehand


class OnGpu:
    """Queues kernels on the current stream of one GPU, compiled for it on first use. Raises Unavailable as
    `compile_cubin` does, and where the driver refuses a launch."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._loaded = cache(self._load)
        self._kernel = cache(self._get)
        self.sizes = cache(self._sizes)

    def launch(self, build: Build, kernel: str, grid: tuple[int, int, int], shared_bytes: int, call: Arguments) -> None:
        """Queue a kernel; the tensors of `call` are those of the caller, who keeps them on this stream."""
        self._launch(build, kernel, grid, shared_bytes, call)

    def _launch(
        self, build: Build, kernel: str, grid: tuple[int, int, int], shared_bytes: int, argument: ctypes._CDataType
    ) -> None:
        from cuda.bindings import driver

        with torch.cuda.device(self.index):
            cuda_core().Device(self.index).set_current()  # torch's backward pass runs in a thread of its own
            handle = self._kernel(build, kernel, shared_bytes)
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))  # type: ignore[arg-type]
            stream = torch.cuda.current_stream().cuda_stream
            block = (THREADS, 1, 1)
            _check(driver.cuLaunchKernel(handle, *grid, *block, shared_bytes, stream, ctypes.addressof(pointers), 0))

    def _load(self, build: Build) -> Any:
        major, minor = torch.cuda.get_device_capability(self.index)
        return compile_cubin(build, f"sm_{major}{minor}").code

    def _get(self, build: Build, kernel: str, shared_bytes: int) -> Any:
        from cuda.bindings import driver

        handle = driver.CUkernel(int(self._loaded(build).get_kernel(kernel).handle))
        (function,) = _check(driver.cuKernelGetFunction(handle))
        if shared_bytes > FREE_BYTES:
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(driver.cuFuncSetAttribute(function, most, shared_bytes))
        return function

    def _sizes(self, build: Build) -> Sizes:
        sizes = torch.zeros(len(Sizes._fields), dtype=torch.int32, device=f"cuda:{self.index}")
        self._launch(build, "attention_sizes", (1, 1, 1), 0, ctypes.c_void_p(sizes.data_ptr()))
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
