"""How tight the error budget of gradients is, and what it catches: error / budget of honest backward passes and others.

Run:  python tests/bench/gradients.py [--quick | --options [--problems N]] [--out FILE.md]

Prints Markdown: the tables of the section "Gradients" of the chapter "accuracy"; with --options, those of honest
kernels on problems that have a softcap, a window, sinks or ALiBi, or several of them. Exits with 1 where an honest
kernel is above its budget or a faulty one stays within it. The truth is the closed form in float64; for float64 inputs,
in 80-bit extended precision (x86).
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from accuracy import BANDS, DTYPES, MASKS, SCALES, VALUES, Tally, caught, in_two, ratio, table, takes, with_options
from accuracy_kernels import Prepared
from gradient_kernels import (
    AUTOGRAD,
    CAPPED,
    CAPPED_NARROW,
    EAGER,
    FAULTY,
    FLASH,
    NARROW,
    TILED,
    Backwards,
    Pass,
    has_bias,
)

from attnspec.conformance.gradient_budget import GradientBudget, gradient_budget
from attnspec.golden.inputs import Source, make_call, to_tensor
from attnspec.spec.dtypes import format_named
from attnspec.spec.problem import Mask, Problem

SCORES = (0.125, 0.5, 1.0, 2.0, 8.0, 32.0)
GRADIENTS = ("query", "key", "value", "attn_mask", "sinks")
FULL, QUICK = (14, 10), (2, 2)  # problems a dtype and band, seeds a power setting
POWER = {  # seed=1: uniform gradients, seed=4: normal ones
    "bfloat16": (
        "q=64/k=64/d=64/scores=2/seed=4",
        "q=64/k=256/d=16/scores=4/seed=4",
        "q=700/k=32/d=16/seed=1",
        "q=64/k=64/d=64/dv=1/scores=2/seed=4",
    ),
    "float32": ("q=64/k=64/d=64/scores=2/seed=4", "q=16/k=8/d=8/seed=4", "q=700/k=32/d=16/seed=1"),
}
POWER["float16"] = POWER["bfloat16"]
UNSEEN = {  # what the roundings hide that the class allows, and what is honest in float32
    "bfloat16": ("delta in float16", "delta in bfloat16", "dQ, dK, dV summed in float16, tile 16", "dP in bfloat16",
                 "P and dS in bfloat16"),
    "float16": ("delta in float16", "delta in bfloat16"),
    "float32": ("torch flash",),
}  # fmt: skip
Tallies = dict[tuple[str, str, str, str], Tally]


def draw(dtype: str, band: tuple[int, int], count: int, seed: int) -> Iterator[Problem]:
    """Yield problems whose key length lies in the band, the same ones for the same arguments."""
    rng = np.random.default_rng([seed, DTYPES.index(dtype), *band])
    for index in range(count):
        k_len = int(rng.integers(band[0], band[1] + 1))
        most = max(1, (2**14 if dtype == "float64" else 2**17) // k_len)  # the truth of float64 is slow
        q_len = int(min(rng.choice(np.array([1, k_len, int(rng.integers(1, 2049))]), p=[0.1, 0.4, 0.5]), most, 2048))
        mask = rng.choice(np.array(MASKS, dtype=object))
        kv_heads = int(rng.choice([1, 2]))
        yield Problem(
            q_len=q_len,
            k_len=k_len,
            head_dim=int(rng.choice([1, 2, 8, 16, 40, 64, 80, 128])),
            value_dim=int(rng.choice([1, 16, 64, 128])),
            batch=int(rng.choice([1, 2])),
            kv_batch=-1 if rng.random() < 0.8 else 1,
            q_heads=kv_heads * int(rng.choice([1, 2])),
            kv_heads=kv_heads,
            dtype=dtype,
            mask=None if mask is None else Mask.parse(mask),
            causal=rng.choice(np.array((None, None, "upper_left", "lower_right"), dtype=object)),
            scale=rng.choice(np.array(SCALES, dtype=object)),
            scores=float(rng.choice(SCORES)),
            values=str(rng.choice(VALUES)),
            seed=seed * 1000 + index,
        )


def make_pass(problem: Problem) -> Pass:
    """Return the backward pass of a problem: normal gradients, uniform or sorted by sign ones, a lse's in a third."""
    call = make_call(problem)
    source, kind = Source(problem.seed), problem.seed % 4
    shape = (*call.query.shape[:3], call.value.shape[-1])
    grad = source.uniform("grad_output", shape) if kind == 1 else source.normal("grad_output", shape)
    if kind == 2:
        grad = np.abs(grad) * np.where(np.arange(shape[2])[:, None] >= shape[2] / 2, 1.0, -1.0)
    grad_lse = torch.from_numpy(source.normal("grad_lse", shape[:3])) if problem.seed % 3 == 0 else None
    if grad_lse is not None:
        grad_lse = grad_lse.to(torch.float64 if problem.dtype == "float64" else torch.float32)
    return Pass(call, problem.corner, to_tensor(grad, format_named(problem.dtype)), grad_lse)


def truth(b: Pass) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the exact gradients, each as a float64 and what it lacks."""
    p = Prepared.of(b.call, b.alignment)
    kind = np.longdouble if p.q.dtype == torch.float64 else np.float64
    q, k, v, grad = (x.double().numpy().astype(kind) for x in (p.q, p.k, p.v, b.grad_output))
    scale = 1 / np.sqrt(kind(q.shape[-1])) if b.call.scale is None else kind(b.call.scale)
    s = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
    capped = None if b.call.softcap is None else np.tanh(s / kind(b.call.softcap))
    s = s if capped is None else b.call.softcap * capped
    s = np.where(p.keep.numpy(), s + p.exact_bias(kind), -np.inf)
    sink = np.array(-np.inf) if p.sinks is None else p.sinks.double().numpy().astype(kind)
    top = np.maximum(s.max(-1, keepdims=True), sink)
    e, of_sink = (np.exp(x - np.where(np.isinf(top), 0, top)) for x in (s, sink))
    total = e.sum(-1, keepdims=True) + of_sink
    weights = e / np.where(total > 0, total, 1)
    dp = np.matmul(grad, np.swapaxes(v, -1, -2))
    delta = (weights * dp).sum(-1, keepdims=True)
    if b.grad_lse is not None:
        delta = delta - b.grad_lse.double().numpy().astype(kind)[..., None]
    ds = weights * (dp - delta)
    below = ds if capped is None else ds * (1 - capped**2)
    grads = {
        "query": scale * np.matmul(below, k),
        "key": scale * np.matmul(np.swapaxes(below, -1, -2), q),
        "value": np.matmul(np.swapaxes(weights, -1, -2), grad),
    }
    for name in ("key", "value"):
        x, heads = grads[name], b.call.key.shape[1]
        x = x.reshape(x.shape[0], heads, -1, *x.shape[2:]).sum(2)
        grads[name] = x if b.call.key.shape[0] == x.shape[0] else x.sum(0, keepdims=True)
    if p.sinks is not None:
        grads["sinks"] = -(of_sink / total * delta).sum((0, 2, 3))
    if has_bias(b.call):
        shape = (1,) * (4 - b.call.attn_mask.ndim) + tuple(b.call.attn_mask.shape)
        summed = ds.sum(tuple(i for i in range(4) if shape[i] == 1), keepdims=True)
        grads["attn_mask"] = summed.reshape(b.call.attn_mask.shape)
    return {name: in_two(x) for name, x in grads.items()}


def ratios(b: Pass, kernels: Backwards, exact: dict[str, tuple[torch.Tensor, torch.Tensor]], budget: GradientBudget
           ) -> Iterator[tuple[str, str, torch.Tensor]]:  # fmt: skip
    """Yield the error / budget of each kernel and gradient."""
    for name, kernel in kernels.items():
        for what, got in kernel(b).items():
            yield name, what, ratio(got, exact[what], getattr(budget, what))


def measure_problem(problem: Problem, band: str, tallies: Tallies) -> None:
    """Add what all honest kernels do on one problem."""
    b = make_pass(problem)
    exact = truth(b)
    narrow = format_named(problem.dtype).bits == 16
    first = "exact" if problem.dtype == "float64" else "fused"
    groups = {first: TILED | CAPPED | (NARROW | CAPPED_NARROW if narrow else {})}
    if b.grad_lse is None:  # torch's kernels give no lse that could have a gradient
        groups = {first: groups[first] | AUTOGRAD | ({} if narrow else FLASH), "eager": EAGER}
    for accuracy, kernels in groups.items():
        budget = gradient_budget(b.call, b.grad_output, b.grad_lse, causal_alignment=b.alignment, accuracy=accuracy)
        kernels = {name: kernel for name, kernel in kernels.items() if takes(name, problem)}
        for name, what, ratio_ in ratios(b, kernels, exact, budget):
            tallies[accuracy, what, problem.dtype, band].add(ratio_, f"{name}, {what}: {problem}")
            tallies["kernel", name, problem.dtype, "all"].add(ratio_, f"{name}, {what}: {problem}")


def measure_honest(count: int, seed: int, options: bool) -> Tallies:
    """Return the tally of each (class, gradient, dtype, band), and of each kernel. options: whether every problem has
    one."""
    tallies: Tallies = defaultdict(Tally)
    for dtype in DTYPES:
        for band, lengths in BANDS.items():
            started = time.monotonic()
            for problem in draw(dtype, lengths, count, seed):
                measure_problem(with_options(problem) if options else problem, band, tallies)
            worst = max(tally.worst for key, tally in tallies.items() if key[2:] == (dtype, band))
            seconds = time.monotonic() - started
            print(f"{dtype} {band}: at most {worst:.2f} budgets, {seconds:.0f} s", file=sys.stderr, flush=True)
    return tallies


def measure_power(dtype: str, setting: str, seeds: int) -> dict[str, float]:
    """Return, for each faulty kernel, the least over the seeds of the largest error / budget of class fused."""
    least, problem = dict.fromkeys(FAULTY, float("inf")), Problem.parse(setting)
    for seed in range(seeds):
        b = make_pass(problem.but(seed=problem.seed + 12 * seed, dtype=dtype))
        exact, budget = truth(b), gradient_budget(b.call, b.grad_output)
        worst = dict.fromkeys(FAULTY, 0.0)
        for name, _, ratio_ in ratios(b, FAULTY, exact, budget):
            worst[name] = max(worst[name], float(ratio_.nan_to_num(nan=torch.inf).max()))
        least = {name: min(least[name], worst[name]) for name in FAULTY}
    return least


def report(tallies: Tallies, power: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the tables: by class, gradient and band; by kernel; and one of the faulty kernels for each dtype."""
    groups = sorted({key[:3] for key in tallies if key[0] != "kernel"},
                    key=lambda g: (g[0], GRADIENTS.index(g[1]), DTYPES.index(g[2])))  # fmt: skip
    by_band = []
    for group in groups:
        cells = [tallies[(*group, band)] for band in BANDS]
        worst = [f"{cell.worst:.2f}" if cell.elements else "" for cell in cells]
        by_band.append([*group, *worst, f"{sum(cell.elements for cell in cells):.1e}"])
    by_kernel = []
    for name in dict.fromkeys(key[1] for key in tallies if key[0] == "kernel"):
        here = [tallies.get(("kernel", name, dtype, "all")) for dtype in DTYPES]
        by_kernel.append([name, *("" if cell is None else f"{cell.worst:.2f}" for cell in here)])
    parts = [
        table(["class", "gradient", "dtype", *(f"keys {band}" for band in BANDS), "elements"], by_band),
        table(["kernel", *DTYPES], by_kernel),
    ]
    for dtype, settings in power.items():
        rows = [[name, *(caught(least[name]) for least in settings.values())] for name in FAULTY]
        parts.append(table([dtype, *(f"`{setting}`" for setting in settings)], rows))
    return "\n\n".join(parts)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="Error over budget of honest and of faulty backward passes.")
    parser.add_argument("--quick", action="store_true", help="a few problems only")
    parser.add_argument("--options", action="store_true", help="problems with a softcap, a window, sinks or ALiBi")
    parser.add_argument("--problems", type=int, help="problems a dtype and band")
    parser.add_argument("--out", type=Path, help="write the Markdown to this file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    problems, seeds = QUICK if options.quick else FULL
    problems = options.problems or problems
    kinds = {} if options.options else POWER
    power = {d: {s: measure_power(d, s, seeds) for s in settings} for d, settings in kinds.items()}
    tallies = measure_honest(problems, options.seed, options.options)
    versions = f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    text = f"{versions}, {platform.machine()}; {problems} problems a dtype and band, "
    text += f"seed {options.seed}" + (f"; {seeds} seeds a power setting" if power else "")
    text += f"\n\n{report(tallies, power)}\n"
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    faults = [f"{tally.worst:.3f} budgets: {tally.where}" for tally in tallies.values() if tally.worst > 1]
    faults += [
        f"{dtype}: {name}"
        for dtype, settings in power.items()
        for name in FAULTY
        if name not in UNSEEN[dtype] and max(least[name] for least in settings.values()) <= 1
    ]
    for line in faults:
        print("FAULT:", line, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
