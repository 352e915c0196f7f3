"""Where kernels run: the CPU, through the emulator, or a GPU. Both take the same struct and give the same answers."""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch

from attnspec.implementations import cuda_emulator
from attnspec.implementations.cuda_flash.arguments import Arguments
from attnspec.implementations.cuda_flash.builds import SOURCE, THREADS, Build, Sizes

Grid = tuple[int, int, int]
BLOCK: Grid = (THREADS, 1, 1)


class Launcher(Protocol):
    """Runs kernels of flash.cu on one device."""

    def launch(self, build: Build, kernel: str, grid: Grid, shared_bytes: int, call: Arguments) -> None:
        """Run a kernel, or queue it on the current stream."""

    def sizes(self, build: Build) -> Sizes:
        """Return the build's tiles."""


class Emulated:
    """Runs on the CPU (`attnspec.implementations.cuda_emulator`). seed: of the order in which the threads of a block
    run; None is by their numbers. sanitize: the sanitizer to build with, None for none."""

    def __init__(self, seed: int | None = None, sanitize: str | None = None) -> None:
        self.seed = seed
        self.sanitize = sanitize

    def launch(self, build: Build, kernel: str, grid: Grid, shared_bytes: int, call: Arguments) -> None:
        """Run a kernel. Raises InputError and KernelFault, as the emulator does."""
        library(build, self.sanitize).launch(kernel, grid, BLOCK, shared_bytes, [call], seed=self.seed)

    def sizes(self, build: Build) -> Sizes:
        """Return the build's tiles."""
        return emulated_sizes(build)


@cache
def library(build: Build, sanitize: str | None = None) -> cuda_emulator.Library:
    """Return the build for the CPU. Raises InputError without a compiler or CUDA's headers."""
    macros = tuple(f"-D{name}={value}" for name, value in build.macros().items())
    return cuda_emulator.build(SOURCE, macros if sanitize else ("-O3", *macros), sanitize=sanitize)


@cache
def emulated_sizes(build: Build) -> Sizes:
    """Return the tiles of a build, as the emulator tells them."""
    sizes = torch.zeros(len(Sizes._fields), dtype=torch.int32)
    library(build).launch("attention_sizes", (1, 1, 1), (1, 1, 1), 0, [sizes])
    return Sizes(*sizes.tolist())


def launcher_for(device: torch.device, emulated: Emulated) -> Launcher:
    """Return what runs kernels on a device: `emulated` for the CPU."""
    if device.type == "cpu":
        return emulated
    from attnspec.implementations.cuda_flash.gpu import on_gpu

    return on_gpu(device.index or 0)
