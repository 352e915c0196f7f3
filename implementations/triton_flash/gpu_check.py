"""Everything that only a GPU can say of this backend, by one command, on a machine that has one:

    python -m attnspec.implementations.triton_flash.gpu_check

It runs the suite on the GPU, compares the outputs with those of the interpreter, and times forward, backward and decode
beside PyTorch's flash and cuDNN kernels. `gpu-check.md` and `gpu-check.json` hold the result. Exit code 0: conformant,
and as fast as `benchmark.TARGETS` asks for; 1: not; 2: no GPU, or bad input. No GPU has run it yet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attnspec.implementations.triton_flash.benchmark import (
    CUDNN,
    FLASH,
    HEAD_DIMS,
    LENGTHS,
    OURS,
    PASSES,
    Measured,
    Peaks,
    Workload,
    page,
    shortfalls,
    to_json,
    workloads,
)

SUITE = "from attnspec.conformance.cli import main; main()"
DEVICE = "cuda"
SQUARE = 8192  # of the matmul that measures the peak
COPIED = 2**30  # bytes
WARM_UP, REPEATS = 3, 20
COMPARED = ((33, 70, 64, True), (130, 130, 128, False), (1, 300, 80, True), (64, 64, 256, False))  # Lq, Lk, d, causal
DTYPES = ("float32", "float16", "bfloat16")


def main(arguments: list[str] | None = None) -> int:
    """Run the check from the command line and return its exit code."""
    asked = parsed(arguments)
    if asked.outputs:
        save_outputs(asked.outputs)
        return 0
    import torch

    if not torch.cuda.is_available():
        print("gpu check: torch sees no CUDA GPU; run this where there is one", file=sys.stderr)
        return 2
    wrong: list[str] = []
    if not asked.no_suite and subprocess.run(suite_command(asked.level), check=False).returncode:
        wrong.append("the suite does not find the backend conformant on this GPU")
    lines = [f"- {line}" for line in differences()]
    peaks = measured_peaks()
    rows = [Measured(work, times(work)) for work in workloads(asked.length, asked.head_dim, asked.kind)]
    wrong += shortfalls(rows)
    device = torch.cuda.get_device_name()
    versions = f"torch {torch.__version__}, triton {version_of_triton()}"
    asked.out.mkdir(parents=True, exist_ok=True)
    text = [*page(device, versions, peaks, rows), "", "Furthest from the interpreter's output:", "", *lines]
    (asked.out / "gpu-check.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    data = to_json(device, versions, peaks, rows) | {"wrong": wrong}
    (asked.out / "gpu-check.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print("\n".join((*text, "", *(f"gpu check: {line}" for line in wrong))))
    return 1 if wrong else 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line. Ends the process with exit code 2, and a line, for bad ones."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path(), help="folder of gpu-check.md and gpu-check.json")
    parser.add_argument("--level", choices=("quick", "full"), default="quick", help="of the suite")
    parser.add_argument("--no-suite", action="store_true", help="only compare and time")
    parser.add_argument("--length", type=positive, nargs="+", default=list(LENGTHS), help="lengths to time")
    parser.add_argument("--head-dim", type=int, nargs="+", choices=HEAD_DIMS, default=list(HEAD_DIMS))
    parser.add_argument("--kind", nargs="+", choices=PASSES, default=list(PASSES), help="passes to time")
    parser.add_argument("--outputs", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Return a positive integer. Raises ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no length: use a positive integer")
    return int(text)


def suite_command(level: str) -> list[str]:
    """Return the command that validates the backend on the GPU."""
    return [sys.executable, "-c", SUITE, "validate", OURS, "--device", DEVICE, "--level", level]


def version_of_triton() -> str:
    """Return Triton's version."""
    import triton

    return str(triton.__version__)


def outputs_of_calls(device: str) -> dict[str, Any]:
    """Return the backend's output for a few calls, by a description, on the CPU. Inputs are drawn from fixed seeds."""
    import torch

    from attnspec.implementations.triton_flash import upper_left

    backend, found = upper_left(), {}
    for seed, (q_len, k_len, dim, causal) in enumerate(COMPARED):
        for dtype in DTYPES:
            draw = torch.Generator().manual_seed(seed)
            shapes = ((2, 4, q_len, dim), (2, 2, k_len, dim), (2, 2, k_len, dim))
            given = [torch.randn(shape, generator=draw).to(getattr(torch, dtype)).to(device) for shape in shapes]
            name = f"q={q_len}, k={k_len}, dim {dim}, {dtype}{', causal' if causal else ''}"
            output = backend(*given, is_causal=causal, enable_gqa=True)
            assert isinstance(output, torch.Tensor)  # as no lse is asked for
            found[name] = output.cpu()
    return found


def save_outputs(path: Path) -> None:
    """Write what the backend gives here, in the interpreter, for the calls that are compared."""
    from safetensors.torch import save_file

    save_file(outputs_of_calls("cpu"), path)


def differences() -> Iterator[str]:
    """Yield for each call how far the GPU's output lies from the interpreter's. The suite holds both to the budget."""
    import torch
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs.safetensors"
        command = [sys.executable, "-m", "attnspec.implementations.triton_flash.gpu_check", "--outputs", str(path)]
        subprocess.run(command, check=True, env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})
        interpreted = load_file(path)
    for name, output in outputs_of_calls(DEVICE).items():
        apart = (output.double() - interpreted[name].double()).abs().max()
        yield f"{name}: {apart:.2e}, in units of the dtype at 1: {apart / torch.finfo(output.dtype).eps:.2f}"


def seconds(run: Callable[[], object]) -> float:
    """Return the median time of a function on the GPU, each time with a cold cache."""
    import torch

    flush = torch.empty(2**28, dtype=torch.int8, device=DEVICE)
    found: list[float] = []
    event: Any = torch.cuda.Event
    for repeat in range(WARM_UP + REPEATS):
        flush.zero_()
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if repeat >= WARM_UP:
            found.append(start.elapsed_time(end) / 1e3)
    return statistics.median(found)


def measured_peaks() -> Peaks:
    """Return what a large bfloat16 matmul and a large copy reach on this GPU."""
    import torch

    a, b = (torch.randn(SQUARE, SQUARE, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    source = torch.empty(COPIED, dtype=torch.int8, device=DEVICE)
    target = torch.empty_like(source)
    multiply = 2.0 * SQUARE**3 / seconds(lambda: a @ b)
    return Peaks(multiply, 2.0 * COPIED / seconds(lambda: target.copy_(source)))


def times(work: Workload) -> dict[str, float]:
    """Return the seconds of each kernel for a workload, by its name. One that refuses it, or has no memory, is absent,
    and the reason is printed."""
    import torch

    def normal(heads: int, length: int) -> torch.Tensor:
        return torch.randn(work.batch, heads, length, work.head_dim, device=DEVICE, dtype=torch.bfloat16)

    backward = work.kind == "backward"
    given = [normal(work.heads, work.q_len), *(normal(work.kv_heads, work.length) for _ in range(2))]
    given = [x.requires_grad_(backward) for x in given]
    found = {}
    for name, attention in kernels(work).items():
        try:
            run = partial(attention, *given, is_causal=work.causal, enable_gqa=work.heads != work.kv_heads)
            if backward:
                output = run()
                flow = torch.randn_like(output)
                run = partial(torch.autograd.grad, output, given, flow, retain_graph=True)
            found[name] = seconds(run)
        except Exception as error:  # of any kernel: the others are still timed
            print(f"gpu check: {name} refuses {work}: {' '.join(str(error).split())[:200]}", file=sys.stderr)
    return found


def kernels(work: Workload) -> dict[str, Callable[..., Any]]:
    """Return the kernels that are timed, by name. Ours splits the keys of a decode."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from attnspec.implementations.triton_flash import need_triton

    need_triton()
    from attnspec.implementations.triton_flash.backend import TritonFlash
    from attnspec.implementations.triton_flash.launch import SPLIT_KEYS

    def torch_kernel(backend: SDPBackend) -> Callable[..., Any]:
        def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(query, key, value, **options)

        return attention

    ours = TritonFlash(split_keys=SPLIT_KEYS if work.kind == "decode" else None)
    named = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
    return {OURS: ours} | {name: torch_kernel(backend) for name, backend in named.items()}


if __name__ == "__main__":
    sys.exit(main())
