"""Faults of CUDA kernels, each a change of `cuda/clean.cu`, and who must find it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from planting import planted

CLEAN = Path(__file__).parent / "cuda" / "clean.cu"
SHARED_BYTES = (32 * 36 + 32 * 32) * 4


class Fault(NamedTuple):
    """A fault. changes: pairs of what stands in the clean kernel and what stands there instead. by: how the kernel is
    built, and a part of what is then told; a key of `plain` alone says that no sanitizer is needed. line: a part of
    the line of the kernel that is named, none where no line is."""

    changes: tuple[tuple[str, str], ...]
    by: dict[str, str]
    line: str = ""

    def source(self) -> str:
        """Return the text of the faulty kernel."""
        return planted(CLEAN.read_text(), self.changes, "of CUDA", CLEAN.name)


def _one(old: str, new: str, by: dict[str, str], line: str = "") -> Fault:
    return Fault(((old, new),), by, line)


WRONG = "differs from the reference"
FAULTS = {
    "no-barrier-before-reload": _one(
        "__syncthreads();  // the tile before has been read", "", {"thread": "data race"}, "*four ="
    ),
    "no-barrier-after-load": _one(
        "__syncthreads();  // the tile is here", "", {"thread": "data race", "plain": WRONG}, "*four ="
    ),
    "no-syncwarp-after-write": _one(
        "__syncwarp();  // the weights are here", "", {"thread": "data race", "plain": WRONG}, "weights[warp][lane] ="
    ),
    "shuffle-as-fence": Fault(
        (
            ("    weights[warp][lane] = weight;\n    __syncwarp();  // the weights are here\n", ""),
            ("    sum = sum * factor", "    weights[warp][lane] = weight;\n    sum = sum * factor"),
        ),
        {"thread": "data race"},
        "weights[warp][lane] =",
    ),
    "past-dynamic-end": _one(
        "load(values + j * DIM + c,",
        "load(values + (j + 1) * DIM + c,",
        {"address": "use-after-poison", "plain": "past the end of a sub-array of dynamic shared memory"},
        "*four =",
    ),
    "into-next-sub-array": _one(
        "load(keys + j * STRIDE + c,",
        "load(keys + j * STRIDE + c + STRIDE,",
        {"address": "use-after-poison", "plain": "past the end of a sub-array of dynamic shared memory"},
        "*four =",
    ),
    "past-static-end": _one(
        "weights[warp][lane] = weight;",
        "(&weights[warp][0])[lane + 1] = weight;",
        {"address": "use-after-poison", "plain": "past the end of a static shared array"},
        "lane + 1",
    ),
    "index-past-static-row": _one(
        "weights[warp][lane] = weight;",
        "weights[warp][lane + 1] = weight;",
        {"address": "index 32 out of bounds for type 'float [32]'"},
        "lane + 1",
    ),
    "past-global-end": _one(
        "if (real) output[row * DIM + lane]",
        "if (real) output[(row + 1) * DIM + lane]",
        {"address": "heap-buffer-overflow"},
        "output[",
    ),
    "misaligned-vector": _one(
        "load(keys + j * STRIDE + c, key + from,",
        "load(keys + j * STRIDE + c, key + from + 1,",
        {"address": "misaligned address"},
        "*four =",
    ),
    "divergent-barrier": _one(
        "__syncthreads();  // the tile is here",
        "if (warp < 2)\n      __syncthreads();\n    else\n      __syncthreads();",
        {"plain": "divergent __syncthreads"},
        "__syncthreads();",
    ),
    "barrier-of-some": _one(
        "__syncthreads();  // the tile is here",
        "if (warp < 2) __syncthreads();",
        {"plain": "divergent __syncthreads"},
        "__syncthreads();",
    ),
    "barrier-in-tail": _one(
        "  if (real && lane == 0) atomicAdd(rows, 1);",
        "  if (lane < 16) warp_sum(result); else __syncthreads();",
        {"plain": "deadlock"},
        "",
    ),
    "mask-without-lane": _one(
        "constexpr unsigned ALL = 0xffffffffu;",
        "constexpr unsigned ALL = 0x0000ffffu;",
        {"plain": "lane 16 is not in its own mask 0x0000ffff"},
        "__shfl_xor_sync",
    ),
    "racing-blocks": _one("atomicAdd(rows, 1);", "rows[0] += 1;", {"thread": "data race"}, "rows[0] += 1"),
    "unset-shared": _one(
        "load(values + j * DIM + c, value + from, first + j < k_len);",
        "if (first + j < k_len) load(values + j * DIM + c, value + from, true);",
        {"plain": WRONG},
    ),
    "unset-static-shared": _one(
        "queries[warp][lane] = real ?", "if (lane > 0) queries[warp][lane] = real ?", {"plain": WRONG}
    ),
    "null-pointer": _one(
        "if (real && lane == 0) atomicAdd(rows, 1);",
        "rows = nullptr;\n  if (real && lane == 0) *rows = 1;",
        {"plain": "an access through a null pointer"},
        "*rows = 1",
    ),
    "stack-overflow": _one(
        "  if (real && lane == 0) atomicAdd(rows, 1);",
        "  float big[80000];\n  for (int i = 0; i < 80000; ++i) (void)*(volatile float*)(big + i);\n"
        "  if (real && lane == 0) atomicAdd(rows, 1);",
        {"plain": "stack overflow"},
    ),
    "tail-guard-one-off": _one(
        "load(keys + j * STRIDE + c, key + from, first + j < k_len);",
        "load(keys + j * STRIDE + c, key + from, first + j <= k_len);",
        {"address": "heap-buffer-overflow"},
        "*four =",
    ),
    "too-little-shared-asked": _one(
        "carve<float>(at, TILE * DIM)",
        "carve<float>(at, TILE * STRIDE)",
        {"plain": "the launch gives 8704"},
        "carve<float>(at, TILE * STRIDE)",
    ),
}
