"""How the extra memory of attention grows with the length: eager attention holds L x L scores, tiled attention none.

Run:  python tests/bench/memory.py [--quick]

Prints a Markdown table: the peak of the bytes that a call holds beyond its inputs and its results, for forward and
backward, and the fitted exponent e of peak = a + c * L^e: 1 is linear, 2 quadratic. The backward row counts from the
first operation of the forward pass to the last of the backward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from live_bytes import LiveBytes, exponent

from attnspec.golden.inputs import make_call
from attnspec.implementations import tiled, torch_eager
from attnspec.spec.capabilities import Backend
from attnspec.spec.problem import Problem

BACKENDS: tuple[Backend, ...] = (torch_eager.backend, tiled.Tiled(tile=(128, 128)))
LENGTHS = (256, 512, 1024, 2048, 4096)
QUICK = LENGTHS[:3]
HEAD_DIM = 64


def forward(backend: Backend, problem: Problem) -> int:
    """Return the peak of the extra bytes of one call without gradients."""
    call = make_call(problem)
    with LiveBytes() as memory:
        output = backend(call.query, call.key, call.value, **call.options())
    return memory.peak - output.untyped_storage().nbytes()


def backward(backend: Backend, problem: Problem) -> int:
    """Return the peak of the extra bytes of one call and its backward pass; the results are the output and the
    gradients of query, key and value."""
    call = make_call(problem)
    inputs = [tensor.requires_grad_() for tensor in (call.query, call.key, call.value)]
    grad_output = torch.ones((*call.query.shape[:3], call.value.shape[3]), dtype=call.query.dtype)
    with LiveBytes() as memory:
        output = backend(*inputs, **call.options())
        grads = torch.autograd.grad(output, inputs, grad_output)
    return memory.peak - sum(tensor.untyped_storage().nbytes() for tensor in (output, *grads))


def table(lengths: Sequence[int]) -> str:
    """Measure both backends and return the table, sizes in KiB."""
    header = ["backend", "pass", *(f"L = {length}" for length in lengths), "exponent"]
    lines = [header, ["---", "---", *["---:"] * (len(lengths) + 1)]]
    for backend in BACKENDS:
        for measure in (forward, backward):
            peaks = [measure(backend, Problem(length, length, HEAD_DIM)) for length in lengths]
            sizes = [f"{peak / 1024:.0f}" for peak in peaks]
            lines.append([backend.name, measure.__name__, *sizes, f"{exponent(lengths, peaks):.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="lengths to 1024 only")
    torch.set_num_threads(1)
    print(table(QUICK if parser.parse_args().quick else LENGTHS))


if __name__ == "__main__":
    main()
