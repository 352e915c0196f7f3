"""Run the clean kernel and the faulty ones in this process, and print what each run told, as JSON.

usage: cuda_run.py FOLDER BUILD RUNS NAME...; FOLDER: where the kernels are written, and compiled to. BUILD: plain,
thread or address. RUNS: how often the clean kernel runs, with another seed each time. NAME: of `cuda_faults.FAULTS`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from cuda_faults import CLEAN, FAULTS, SHARED_BYTES, WRONG
from sanitized import restart_under

from attnspec.implementations.cuda_emulator import KernelFault, Library, build

Q_LEN, K_LENS, DIM = 10, (70, 20), 32


def told_of(library: Library, seed: int) -> str:
    """Run the kernel and return what was told of it: a fault, a wrong result, or nothing."""
    generator = torch.Generator().manual_seed(0)
    for k_len in K_LENS:
        query, key, value = (torch.randn(n, DIM, generator=generator) for n in (Q_LEN, k_len, k_len))
        output, rows = torch.zeros_like(query), torch.zeros(1, dtype=torch.int32)
        arguments = [query, key, value, output, rows, Q_LEN, k_len, DIM**-0.5]
        try:
            library.launch("attention", (-(-Q_LEN // 4),), (128,), SHARED_BYTES, arguments, seed)
        except KernelFault as fault:
            return str(fault)
        expected = torch.softmax(query.double() @ key.double().T * DIM**-0.5, -1) @ value.double()
        if not torch.allclose(output.double(), expected, atol=1e-5, rtol=0) or rows.item() != Q_LEN:
            return f"the result {WRONG}"
    return ""


def main(folder: Path, kind: str, runs: int, names: list[str]) -> None:
    """Print {"clean": [a line a run], "faults": {name: a line}}."""
    sanitize = None if kind == "plain" else kind
    clean = build(CLEAN, sanitize=sanitize)
    told = {"clean": [told_of(clean, seed) for seed in range(runs)], "faults": {}}
    for name in names:
        source = folder / f"{name}.cu"
        source.write_text(FAULTS[name].source())
        told["faults"][name] = told_of(build(source, sanitize=sanitize), 0)
    print(json.dumps(told))


if __name__ == "__main__":
    place, kind, runs, *names = sys.argv[1:]
    if kind != "plain":
        restart_under(kind, Path(place))
    main(Path(place), kind, int(runs), names)
