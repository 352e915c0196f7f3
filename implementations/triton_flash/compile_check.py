"""Compile every kernel to machine code for GPUs that are not there, and hold what it takes to the recorded table.

    python -m attnspec.implementations.triton_flash.compile_check

Exit code 0: every kernel compiles for every target, fits, and spills no more than recorded; 1: it does not; 2: Triton
is missing. What is compiled is what the backend launches: the calls are made, with the launches
noted instead of run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from attnspec.implementations.triton_flash.resources import (
    Record,
    Resources,
    findings,
    load,
    of_amdgcn,
    of_ptxas,
    page,
    save,
)

Arguments = dict[str, Any]
Options = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A GPU to compile for: what Triton calls it, and the tile of `launch.CONFIGURATIONS` that it is compiled with, by
    rows, keys, warps and stages."""

    backend: str
    arch: int | str
    warp: int
    tile: tuple[int, int, int, int]


TARGETS = {
    "sm_80": Target("cuda", 80, 32, (64, 64, 4, 3)),
    "sm_90": Target("cuda", 90, 32, (64, 64, 4, 3)),
    "sm_100": Target("cuda", 100, 32, (64, 64, 4, 3)),
    "gfx942": Target("hip", "gfx942", 64, (64, 32, 4, 2)),
}
SMALL = (16, 16, 4, 1)  # for float32, whose products have no matrix unit and take long to compile


@dataclass(frozen=True)
class Launch:
    """A kernel as the backend would launch it."""

    kernel: Any
    arguments: Arguments

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.fn.__name__)


def calls() -> dict[str, Callable[[], None]]:
    """Return calls of the backend, by a description, that launch every kernel with everything that changes its code."""
    import torch

    from attnspec.implementations.triton_flash.passes import Sequences, backward_pass, forward_pass

    def there_and_back(call: Sequences) -> None:
        output, lse = forward_pass(call)
        backward_pass(call, output, lse, torch.empty_like(output), None, (True, True, False))

    def plain(dtype: torch.dtype, dim: int) -> Sequences:
        query, key, value = (torch.empty(1, 8, 1024, dim, dtype=dtype) for _ in range(3))
        return Sequences(query, key, value, 1024, 1024, right=0)

    def with_options() -> None:
        query, lengths = torch.empty(2, 8, 1024, 64, dtype=torch.bfloat16), torch.full((2,), 1024, dtype=torch.int32)
        key, value = (torch.empty(2, 2, 1024, 64, dtype=torch.bfloat16) for _ in range(2))
        mask, slopes = torch.empty(2, 8, 1024, 1024, dtype=torch.bfloat16), torch.empty(2, 8)
        told: Options = {"attn_mask": mask, "alibi_slopes": slopes, "sinks": torch.empty(8), "key_lengths": lengths}
        call = Sequences(query, key, value, 1024, 1024, left=128, right=0, lower_right=True, softcap=30.0, **told)
        output, lse = forward_pass(call)
        backward_pass(call, output, lse, torch.empty_like(output), torch.empty_like(lse), (True, True, True))

    def packed() -> None:
        query, key, value = (torch.empty(1, 8, 1024, 64, dtype=torch.float16) for _ in range(3))
        ends = torch.tensor([0, 24, 1024], dtype=torch.int32)
        query, key, value = (x.expand(2, *x.shape[1:]) for x in (query, key, value))
        there_and_back(Sequences(query, key, value, 1000, 1000, right=0, cu_seqlens_q=ends, cu_seqlens_k=ends))

    def paged() -> None:
        query = torch.empty(2, 32, 1, 128, dtype=torch.bfloat16)
        key, value = (torch.empty(600, 8, 16, 128, dtype=torch.bfloat16) for _ in range(2))
        told: Options = {"block_table": torch.zeros(2, 256, dtype=torch.int32), "key_lengths": torch.full((2,), 4096)}
        told |= {"lower_right": True, "right": 0, "split_keys": 512}
        forward_pass(Sequences(query, key, value, 1, 4096, **told))

    return {
        "bfloat16, dim 128, causal": lambda: there_and_back(plain(torch.bfloat16, 128)),
        "bfloat16, dim 64, every option": with_options,
        "float16, dim 64, packed": packed,
        "bfloat16, dim 128, paged, split": paged,
        "float32, dim 64, causal": lambda: there_and_back(plain(torch.float32, 64)),
    }


def launches(call: Callable[[], None]) -> list[Launch]:
    """Return what a call would launch. Nothing is run: what it returns is memory as it was."""
    found: list[Launch] = []
    with noting(found):
        call()
    return found


@contextlib.contextmanager
def noting(found: list[Launch]) -> Iterator[None]:
    """While this lasts, launches of kernels are noted instead of run."""
    from attnspec.implementations.triton_flash import launch

    def note(kernel: Any, grid: Any, arguments: Arguments) -> None:
        found.append(Launch(kernel, arguments))

    run = launch.run
    launch.run = note
    try:
        yield
    finally:
        launch.run = run


def compiled(launch: Launch, target: Target, tile: tuple[int, int, int, int]) -> Resources:
    """Compile a launch and return what it takes.

    tile: rows, keys, warps and stages; rows and keys where the launch leaves them open. The arguments are specialised
    as Triton specialises them at a launch: by dtype, alignment, and a stride of 1. Raises what the compiler raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    gpu = GPUTarget(target.backend, target.arch, target.warp)
    backend = make_backend(gpu)
    kernel, (rows, keys, warps, stages) = launch.kernel, tile
    open_ended = {"ROWS": rows, "KEYS": keys} if "ROWS" not in launch.arguments else {}
    given = {name: x for name, x in (launch.arguments | open_ended).items() if name in kernel.arg_names}
    bound, specialised, _ = create_function_from_signature(kernel.signature, kernel.params, backend)(**given)
    meta = given | {"num_warps": warps, "num_stages": stages}
    options, signature, constants, attributes = kernel._pack_args(backend, meta, bound, specialised, None)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    log = io.StringIO()
    triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
    with contextlib.redirect_stdout(log):
        done = triton.compile(source, target=gpu, options=options.__dict__)
    shared = int(done.metadata.shared)
    return of_amdgcn(done.asm["amdgcn"], shared) if target.backend == "hip" else of_ptxas(log.getvalue(), shared)


def kernels() -> set[str]:
    """Return the names of the kernels that the modules of this package define: the compiled functions that no other
    compiled function calls."""
    from triton.runtime.jit import JITFunction

    from attnspec.implementations.triton_flash import backend  # noqa: F401  imports the others

    modules = [module for name, module in sys.modules.items() if name.startswith(__package__ + ".")]
    functions = {x.fn.__name__: x for module in modules for x in vars(module).values() if isinstance(x, JITFunction)}
    called = {name for x in functions.values() for name in x.fn.__code__.co_names}
    return set(functions) - called


def table(told: Callable[[str], None]) -> dict[str, dict[str, Resources]]:
    """Return what every kernel of every call takes on every target. told: is handed a line for each."""
    found: dict[str, dict[str, Resources]] = {name: {} for name in TARGETS}
    for description, call in calls().items():
        for launch in launches(call):
            for name, target in TARGETS.items():
                tile = SMALL if description.startswith("float32") else target.tile
                takes = found[name][f"{launch.name}, {description}"] = compiled(launch, target, tile)
                told(f"{name:7} {launch.name:15} {description:32} {takes}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the check from the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the table of today")
    parser.add_argument("--page", action="store_true", help="print docs/triton-resources.md from the recorded table")
    asked = parser.parse_args(arguments)
    if asked.page:
        print("\n".join(page(load())))
        return 0
    os.environ["TRITON_INTERPRET"] = "0"  # before triton is imported
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as the GPU's own compilers do
    try:
        import triton
    except ImportError as error:
        print(f"compile check: needs triton, the extra attnspec[triton] ({error})", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        record = Record(triton.__version__, table(lambda line: print(line, flush=True)))
    if asked.record:
        save(record)
    wrong = list(findings(record, load(), kernels()))
    for line in wrong:
        print(f"compile check: {line}", file=sys.stderr)
    count = sum(len(rows) for rows in record.table.values())
    print(f"{count} kernels compiled for {', '.join(record.table)}: {len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
