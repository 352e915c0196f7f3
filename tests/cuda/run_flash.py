"""Run the kernels of cuda_flash, clean and with planted faults, under a sanitizer, and print what it told, as JSON.

usage: run_flash.py FOLDER BUILD NAME...; FOLDER: where faulty sources are written. BUILD: thread or address. NAME: of
`FAULTS`. Prints {"clean": {a call: a line}, "faults": {name: a line}}, the line empty where nothing was told.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where `cuda_mutants` is, here as under pytest

from cuda_mutants import CudaMutant, written
from sanitized import restart_under

from attnspec.golden.inputs import make_call
from attnspec.implementations.cuda_emulator import KernelFault
from attnspec.implementations.cuda_flash.backend import CudaFlash
from attnspec.implementations.cuda_flash.builds import SOURCE
from attnspec.implementations.cuda_flash.launcher import Emulated
from attnspec.spec.problem import Problem

CALLS = (
    "q=18/k=45/d=32/grad/dtype=float32",
    "hq=2/hkv=1/q=17/k=33/d=24/dv=32/grad/dtype=float16/causal/mask=bool.qk.random",
    "b=2/q=3/k=300/d=16/grad/dtype=bfloat16/lengths=ragged",
    "q=9/k=40/d=16/grad/dtype=float32/window=4.2/mask=float.qk.bias",
)
TILE = "    __syncthreads();  // all warps are done with the tile before"
OF_A_TILE = "    __syncthreads();\n    if (own"
VALUES = "value, Tile::KEY_STRIDE, call.value, kv_batch(call, batch), kv_head(call, head), tile, LANES"
FAULTS = {
    "no-barrier-before-the-reload": CudaMutant("", "forward.cuh", TILE, "", ()),
    "no-barrier-after-the-load": CudaMutant("", "forward.cuh", OF_A_TILE, "    if (own", ()),
    "no-syncwarp-after-the-weights": CudaMutant("", "forward.cuh", "    __syncwarp();\n", "", ()),
    "no-barrier-in-the-backward-pass": CudaMutant("", "backward.cuh", OF_A_TILE, "    if (own", ()),
    "one-key-too-many-in-the-tile": CudaMutant("", "forward.cuh", VALUES, VALUES + " + 1", ()),
}
OF_THREADS = tuple(name for name in FAULTS if name.startswith("no-"))


def told_of(source: Path, sanitize: str, text: str) -> str:
    """Run a call forward and back and return what was told of it."""
    call = make_call(Problem.parse(text))
    backend = CudaFlash(emulated=Emulated(seed=1, sanitize=sanitize, source=source))
    leaves = [x.detach().requires_grad_() for x in (call.query, call.key, call.value)]
    try:
        output = backend(*leaves, **call.options())
        torch.autograd.grad(output, leaves, torch.ones_like(output))
    except KernelFault as fault:
        return str(fault)
    return ""


def main(folder: Path, sanitize: str, names: list[str]) -> None:
    """Print what each run told."""
    told: dict[str, dict[str, str]] = {"clean": {text: told_of(SOURCE, sanitize, text) for text in CALLS}, "faults": {}}
    for name in names:
        place = folder / name
        place.mkdir()
        told["faults"][name] = told_of(written(FAULTS[name], place), sanitize, CALLS[0])
    print(json.dumps(told))


if __name__ == "__main__":
    place, kind, *names = sys.argv[1:]
    restart_under(kind, Path(place))
    main(Path(place), kind, names)
