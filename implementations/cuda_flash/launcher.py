"""Where kernels run: the CPU, through the emulator, or a GPU. Both take the same struct and give the same answers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Protocol

import torch

from attnspec.implementations import cuda_emulator
from attnspec.implementations.cuda_flash.arguments import Arguments
from attnspec.implementations.cuda_flash.builds import SOURCE, THREADS, Build, Grid, Sizes

BLOCK: Grid = (THREADS, 1, 1)


class Launcher(Protocol):
    """Runs kernels of flash.cu on one device."""

    def launch(self, build: Build, kernel: str, grid: Grid, shared_bytes: int, call: Arguments) -> None:
        """Run a kernel, or queue it on the current stream."""

    def sizes(self, build: Build) -> Sizes:
        """Return the build's tiles."""


class Emulated:
    """Runs on the CPU (`attnspec.implementations.cuda_emulator`). seed: of the order in which blocks and threads run;
    None is by their numbers. sanitize: the sanitizer to build with, None for none. source: a file in place of flash.cu.
    optimise: g++'s option; with a sanitizer that of the sanitizer stands."""

    def __init__(
        self, seed: int | None = None, sanitize: str | None = None, source: Path = SOURCE, optimise: str = "-O3"
    ) -> None:
        self.seed = seed
        self.sanitize = sanitize
        self.source = source
        self.optimise = optimise

    def launch(self, build: Build, kernel: str, grid: Grid, shared_bytes: int, call: Arguments) -> None:
        """Run a kernel to its end. Raises InputError and KernelFault, as the emulator does."""
        self._library(build).launch(kernel, grid, BLOCK, shared_bytes, [call], seed=self.seed)

    def sizes(self, build: Build) -> Sizes:
        """Return the build's tiles."""
        return sizes_of(self._library(build))

    def _library(self, build: Build) -> cuda_emulator.Library:
        return library(build, self.sanitize, self.source, self.optimise)


@cache
def library(
    build: Build, sanitize: str | None = None, source: Path = SOURCE, optimise: str = "-O3"
) -> cuda_emulator.Library:
    """Return the build for the CPU. Raises InputError without a compiler or CUDA's headers."""
    macros = tuple(f"-D{name}={value}" for name, value in build.macros().items())
    return cuda_emulator.build(source, macros if sanitize else (optimise, *macros), sanitize=sanitize)


@cache
def sizes_of(built: cuda_emulator.Library) -> Sizes:
    """Return the tiles of a build."""
    sizes = torch.zeros(len(Sizes._fields), dtype=torch.int32)
    built.launch("attention_sizes", (1, 1, 1), (1, 1, 1), 0, [sizes])
    return Sizes(*sizes.tolist())


def launcher_for(device: torch.device, emulated: Emulated) -> Launcher:
    """Return what runs kernels on a device: `emulated` for the CPU."""
    if device.type == "cpu":
        return emulated
    from attnspec.implementations.cuda_flash.gpu import on_gpu

    return on_gpu(device.index or 0)
