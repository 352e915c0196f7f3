"""Run CUDA C++ files on the CPU: the compiler, the launch, and the sanitizers around them."""

from attnspec.implementations.cuda_emulator.build import build
from attnspec.implementations.cuda_emulator.launch import KernelFault, Library

__all__ = ["KernelFault", "Library", "build"]
