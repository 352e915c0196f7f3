"""What a machine with a GPU runs to confirm the kernels there; no machine has yet.

`python -m attnspec.implementations.cuda_flash.gpu_check TABLE.md` writes a table of what was run. Exit 0: all of it
holds; 1: something does not, or could not run; 2: there is no GPU.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from attnspec.implementations import cuda_emulator
from attnspec.implementations.cuda_flash.backend import CudaFlash
from attnspec.implementations.cuda_flash.builds import SOURCE, TYPES, Build
from attnspec.implementations.cuda_flash.gpu import OnGpu

MMA = SOURCE.with_name("mma_check.cu")
SANITIZER, TOOLS = "compute-sanitizer", ("memcheck", "racecheck", "synccheck")
SMALL = "--small"  # the calls that run under compute-sanitizer, and nothing else
CLOSE = {torch.float32: 2.0**-18, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}
"""By how much of the largest value GPU and emulator may differ: sums in another order, another exp, some roundings of
the dtype. The suite holds both to the error budget."""
SHAPES = ((2, 4, 4, 100, 70, 64), (1, 4, 2, 33, 65, 128), (1, 2, 1, 40, 50, 256), (2, 2, 1, 3, 700, 24))
TIMED = ((4, 16, 1024, 64), (2, 16, 2048, 128))
ROUNDS = 20


class Row(NamedTuple):
    """A line of the table. what: that was run; found: what it gave; holds: whether that is as it should be."""

    what: str
    found: str
    holds: bool


def main(arguments: list[str]) -> int:
    """Run all and write the table; return the exit code."""
    if not torch.cuda.is_available():
        print("gpu_check: torch sees no CUDA GPU here, and nothing was run", file=sys.stderr)
        return 2
    if arguments == [SMALL]:
        for dtype in TYPES:
            attend(inputs(SHAPES[1], dtype, "cuda"))
        torch.cuda.synchronize()
        return 0
    if len(arguments) != 1:
        print("gpu_check: name the one file that the table is written to", file=sys.stderr)
        return 2
    rows = [*suite(), *layouts(run_on_gpu), *comparisons(), *sanitized(), *timings()]
    Path(arguments[0]).write_text(table(torch.cuda.get_device_name(), rows), encoding="utf-8")
    return 0 if all(row.holds for row in rows) else 1


def table(device: str, rows: list[Row]) -> str:
    """Return the rows in Markdown."""
    lines = [
        f"# cuda_flash on {device}",
        "",
        f"torch {torch.__version__}",
        "",
        "| run | found | holds |",
        "|---|---|---|",
    ]
    lines += [f"| {row.what} | {row.found.replace('|', '/')} | {'yes' if row.holds else '**no**'} |" for row in rows]
    return "\n".join([*lines, ""])


def suite() -> Iterator[Row]:
    """Run the suite on the GPU, for both corners of the causal triangle."""
    for name in ("cuda_flash", "cuda_flash.lower_right"):
        command = [
            sys.executable,
            "-m",
            "attnspec.conformance.cli",
            "validate",
            name,
            "--device",
            "cuda",
            "--jobs",
            "1",
        ]
        yield ran(f"suite, {name}", command)


def sanitized() -> Iterator[Row]:
    """Run small calls under each tool of compute-sanitizer."""
    for tool in TOOLS:
        if shutil.which(SANITIZER) is None:
            yield Row(tool, f"not run: {SANITIZER} is not on the PATH", False)
            continue
        own = [sys.executable, "-m", "attnspec.implementations.cuda_flash.gpu_check", SMALL]
        yield ran(tool, [SANITIZER, "--tool", tool, "--error-exitcode", "9", *own])


def ran(what: str, command: list[str]) -> Row:
    """Run a program; the row holds its last line, and whether it ended with 0."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return Row(what, said[-1].strip() if said else f"exit {done.returncode}", done.returncode == 0)


Runner = Callable[[torch.dtype, torch.Tensor, torch.Tensor, torch.Tensor], None]


def layouts(run: Runner) -> Iterator[Row]:
    """Multiply small whole numbers, which is exact in any order, by one mma of each dtype: a fragment laid out in
    another way gives another product. Source: PTX ISA, "Matrix Fragments for mma.m16n8k16"."""
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (torch.randint(-8, 9, shape, generator=generator).to(dtype) for shape in ((16, 16), (16, 8)))
        d = torch.zeros(16, 8)
        run(dtype, a, b, d)
        wrong = int((d != a.float() @ b.float()).sum())
        yield Row(f"mma layout, {dtype}", f"{wrong} of {d.numel()} elements differ", wrong == 0)


def run_on_gpu(dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
    """Run kernel mma_product on the GPU; all tensors are on the CPU."""
    there = d.cuda()
    OnGpu(0, MMA).queue(Build(dtype, 32), "mma_product", (1, 1, 1), (32, 1, 1), 0, [a.cuda(), b.cuda(), there])
    d.copy_(there)


def run_emulated(dtype: torch.dtype, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor) -> None:
    """Run kernel mma_product in the emulator."""
    macros = [f"-D{name}={value}" for name, value in Build(dtype, 32).macros().items()]
    cuda_emulator.build(MMA, macros).launch("mma_product", (1, 1, 1), (32, 1, 1), 0, [a, b, d])


def inputs(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Return query, key and value of a shape (batch, q_heads, kv_heads, q_len, k_len, dim), the same on any device."""
    batch, q_heads, kv_heads, q_len, k_len, dim = shape
    generator = torch.Generator().manual_seed(1)
    sizes = ((batch, q_heads, q_len, dim), *[(batch, kv_heads, k_len, dim)] * 2)
    return [torch.randn(size, generator=generator).to(dtype).to(device).requires_grad_() for size in sizes]


def attend(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return output, lse and the gradients of a causal call, on the CPU in float32."""
    output, lse = CudaFlash()(*given, is_causal=True, enable_gqa=True, return_lse=True)
    grads = torch.autograd.grad(output, given, torch.ones_like(output))
    return [x.detach().cpu().float() for x in (output, lse, *grads)]


def comparisons() -> Iterator[Row]:
    """Compare the GPU with the emulator, forward and back."""
    for dtype, close in CLOSE.items():
        for shape in SHAPES:
            pairs = zip(attend(inputs(shape, dtype, "cuda")), attend(inputs(shape, dtype, "cpu")), strict=True)
            apart = max(difference(a, b) for a, b in pairs)
            yield Row(f"GPU and emulator, {dtype}, {shape}", f"{apart:.2g} of the largest value", apart <= close)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference over the largest value; equal infinities do not differ, other ones do."""
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not torch.equal(a[~finite], b[~finite]):
        return float("inf")
    largest = b[finite].abs().max().item() if finite.any() else 0.0
    return (a - b)[finite].abs().max().item() / largest if largest else float((a[finite] != 0).any())


def timings() -> Iterator[Row]:
    """Time both passes against PyTorch's SDPA; a ratio is told and holds whatever it is."""
    for dtype in TYPES:
        for batch, heads, length, dim in TIMED:
            given = inputs((batch, heads, heads, length, length, dim), dtype, "cuda")
            own, of_torch = milliseconds(CudaFlash(), given), milliseconds(scaled_dot_product_attention, given)
            words = [
                f"{name} {a:.3g} ms, SDPA {b:.3g} ms, ratio {a / b:.3g}"
                for name, a, b in zip(("forward", "both passes"), own, of_torch, strict=True)
            ]
            yield Row(f"time, {dtype}, {(batch, heads, length, dim)} causal", "; ".join(words), True)


def milliseconds(attention: Callable[..., Any], given: list[torch.Tensor]) -> tuple[float, float]:
    """Return the median time of a forward pass, and of a forward and a backward pass."""

    def forward() -> None:
        attention(*given, is_causal=True)

    def both() -> None:
        output = attention(*given, is_causal=True)
        torch.autograd.grad(output, given, torch.ones_like(output))

    return median(forward), median(both)


def median(run: Callable[[], None]) -> float:
    """Return the median of ROUNDS times in milliseconds, after one round that compiles and warms up."""
    run()
    times: list[float] = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[ROUNDS // 2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
