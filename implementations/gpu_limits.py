"""What a block of threads may have on the GPUs that kernels are compiled for."""

from __future__ import annotations

KIB = 1024
SHARED_LIMITS = {  # bytes of shared memory of one block, by target
    "sm_80": 163 * KIB,  # CUDA C++ Programming Guide, table "Technical specifications per compute capability"
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "gfx942": 64 * KIB,  # AMD CDNA 3 instruction set architecture, local data share
}
MOST_SHARED = max(SHARED_LIMITS.values())
MOST_THREADS = 1024  # on every one of CUDA's
