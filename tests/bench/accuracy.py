"""How tight the error budget is, and what it catches: error / budget of honest kernels and of coarse ones.

Run:  python tests/bench/accuracy.py [--quick | --options [--problems N]] [--out FILE.md]

Prints Markdown: the tables of the chapter "accuracy"; with --options, those of honest kernels on problems that have a
softcap, a window, sinks or ALiBi, or several of them. Exits with 1 where an honest kernel is above its budget or a
faulty one stays within it. The truth is the float64 reference; for float64 inputs, 80-bit extended precision (x86).
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accuracy_kernels import (
    CAPPED,
    CAPPED_NARROW,
    EAGER,
    FAULTY,
    FUSED,
    NARROW,
    OF_TORCH,
    STEPWISE,
    WIDE,
    Kernel,
    Prepared,
)

from attnspec.conformance.budget import error_budget
from attnspec.golden.inputs import make_call
from attnspec.reference.attention import answer
from attnspec.spec.alibi import Alibi
from attnspec.spec.dtypes import format_named
from attnspec.spec.problem import SINKS, Mask, Problem
from attnspec.spec.window import Window

BANDS = {"2-16": (2, 16), "17-130": (17, 130), "131-600": (131, 600), "above 600": (601, 2048)}
DTYPES = ("bfloat16", "float16", "float32", "float64")
VALUES = ("normal", "uniform", "spiky", "constant", "sign_sorted")
MASKS = (None, None, None, "bool.bhqk.random", "bool.b11k.padding", "float.qk.bias", "float.bhqk.random",
         "bool.hqk.empty_rows", "float.qk.low")  # fmt: skip
SCALES = (None, None, None, None, -0.3, 0.0, 1.7)
SOFTCAPS = (0.5, 3.0, 20.0, 50.0, 200.0)
WINDOWS = ((3, 0), (0, 5), (20, 20), (-1, 2), (100, -1))
FULL, QUICK = (32, 20), (2, 2)  # problems a dtype and band, seeds a power setting

POWER = {
    "bfloat16": (
        "q=64/k=128/d=64/hq=2/scores=8",
        "q=64/k=64/d=64/hq=2/scores=16",
        "q=128/k=128/d=64/causal/scores=8",
        "q=16/k=512/d=64/scores=0.1/values=sign_sorted",
        "q=16/k=1024/d=64/scores=0.1/values=sign_sorted",
        "q=64/k=1024/d=64/values=uniform",
    ),
    "float32": (
        "q=64/k=4/d=2/dv=64/hq=2/scores=1.5",
        "q=64/k=8/d=16/dv=64/hq=2/scores=1.5",
        "q=64/k=64/d=64",
        "q=64/k=64/d=64/scores=8",
        "q=16/k=1024/d=64",
    ),
}
POWER["float16"] = POWER["bfloat16"]
UNSEEN = {  # what a 16-bit output's own rounding hides, or what the class allows
    "bfloat16": ("log2(e) = 1.442", "log2(e) = 1.4427", "P V summed in float16, tile 64", "weights in bfloat16",
                 "q and k in TF32", "q and k in bfloat16"),
    "float16": ("log2(e) = 1.442", "log2(e) = 1.4427", "q and k in TF32"),
    "float32": (),
}  # fmt: skip


@dataclass
class Tally:
    """The largest error / budget of a group of kernels, the problem that has it, and the number of elements."""

    worst: float = 0.0
    where: str = ""
    elements: int = 0

    def add(self, ratio: torch.Tensor, where: str) -> None:
        """Take in one result. A ratio that is not a number counts as infinite."""
        self.elements += ratio.numel()
        largest = float(ratio.nan_to_num(nan=torch.inf).max()) if ratio.numel() else 0.0
        if largest > self.worst:
            self.worst, self.where = largest, where


def draw(dtype: str, band: tuple[int, int], count: int, seed: int) -> Iterator[Problem]:
    """Yield problems whose key length lies in the band, the same ones for the same arguments."""
    rng = np.random.default_rng([seed, DTYPES.index(dtype), *band])
    for index in range(count):
        k_len = int(rng.integers(band[0], band[1] + 1))
        small = dtype == "float64"  # its truth is slow
        most = max(1, (2**14 if small else 2**18) // k_len)
        q_len = int(min(rng.choice(np.array([1, k_len, int(rng.integers(1, 2049))]), p=[0.1, 0.4, 0.5]), most, 2048))
        mask = rng.choice(np.array(MASKS, dtype=object))
        kv_heads = int(rng.choice([1, 2]))
        yield Problem(
            q_len=q_len,
            k_len=k_len,
            head_dim=int(rng.choice([1, 2, 8, 16, 40, 64, 80, 128])),
            value_dim=int(rng.choice([1, 16, 64, 128])),
            batch=int(rng.choice([1, 2])),
            q_heads=kv_heads * int(rng.choice([1, 2])),
            kv_heads=kv_heads,
            dtype=dtype,
            mask=None if mask is None else Mask.parse(mask),
            causal=rng.choice(np.array((None, None, "upper_left", "lower_right"), dtype=object)),
            scale=rng.choice(np.array(SCALES, dtype=object)),
            scores=float(rng.choice([0.1, 0.3, 1.0, 3.0, 10.0])),
            values=str(rng.choice(VALUES)),
            seed=seed * 1000 + index,
        )


def with_options(problem: Problem) -> Problem:
    """Return a problem with one or more of softcap, window, sinks and ALiBi, drawn by its seed and sizes."""
    rng = np.random.default_rng([problem.seed, problem.k_len, DTYPES.index(problem.dtype)])
    chosen = rng.permutation(["softcap", "window", "sinks", "alibi"])[: rng.integers(1, 5)]
    corner = problem.causal or str(rng.choice(["upper_left", "lower_right"]))
    drawn = {
        "softcap": float(rng.choice(SOFTCAPS)),
        "window": Window(*WINDOWS[rng.integers(len(WINDOWS))], corner),
        "sinks": str(rng.choice(SINKS)),
        "alibi": Alibi(str(rng.choice(["symmetric", "signed"]))),
    }
    return problem.but(**{name: drawn[name] for name in chosen})


@dataclass(frozen=True)
class Truth:
    """The exact output and lse, each as a float64 and what it lacks, also float64."""

    output: tuple[torch.Tensor, torch.Tensor]
    lse: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, p: Prepared) -> Truth:
        """Return the truth by the float64 reference, or in 80-bit numbers for float64 inputs."""
        if p.q.dtype != torch.float64:
            result = answer(p.call, p.alignment)
            assert result.lse is not None
            return cls((result.output, torch.zeros(())), (result.lse, torch.zeros(())))
        q, k, v = (x.numpy().astype(np.longdouble) for x in (p.q, p.k, p.v))
        scale = 1 / np.sqrt(np.longdouble(q.shape[-1])) if p.call.scale is None else p.call.scale
        s = np.matmul(q, np.swapaxes(k, -1, -2)) * scale
        s = s if p.call.softcap is None else p.call.softcap * np.tanh(s / np.longdouble(p.call.softcap))
        s = s + p.exact_bias(np.longdouble)
        s = np.where(p.keep.numpy(), s, -np.inf)
        sink = np.array(-np.inf) if p.sinks is None else p.sinks.numpy().astype(np.longdouble)
        top = np.maximum(s.max(-1, keepdims=True), sink)
        e = np.exp(s - np.where(np.isinf(top), 0, top))
        total = e.sum(-1, keepdims=True) + np.exp(sink - np.where(np.isinf(top), 0, top))
        with np.errstate(divide="ignore"):
            lse = (top + np.log(total))[..., 0]
        return cls(in_two(np.matmul(e, v) / np.where(total > 0, total, 1)), in_two(lse))


def in_two(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a long double array as float64 plus what is missing."""
    high = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        low = np.nan_to_num((x - high).astype(np.float64))
    return torch.from_numpy(high), torch.from_numpy(low)


def ratio(got: torch.Tensor, truth: tuple[torch.Tensor, torch.Tensor], budget: torch.Tensor) -> torch.Tensor:
    """Return error / budget of every element; an error of 0 is 0 budgets, also where the budget is 0."""
    error = ((got.double() - truth[0]) - truth[1]).abs()
    error = torch.where(got.double() == truth[0], truth[1].abs(), error)  # -inf equals -inf
    return torch.where(error == 0, 0.0, error / budget)


def honest_groups(dtype: str) -> dict[tuple[str, str, bool], dict[str, Kernel]]:
    """Return the honest kernels by (group, accuracy class, store)."""
    narrow = format_named(dtype).bits == 16
    first = "exact" if dtype == "float64" else "fused"
    groups: dict[tuple[str, str, bool], dict[str, Kernel]] = {
        (first, first, True): FUSED | STEPWISE | CAPPED | (NARROW | CAPPED_NARROW if narrow else {}),
        ("eager", "eager", True): EAGER,
    }
    return groups | ({("float32 out", first, False): WIDE} if narrow else {})


def takes(name: str, problem: Problem) -> bool:
    """Whether a kernel has the options of a problem, and is another than its neighbour there."""
    if name in OF_TORCH:
        in_16_bits = format_named(problem.dtype).bits == 16
        return not (problem.softcap or problem.sinks or (problem.alibi and in_16_bits))
    return problem.softcap is not None or name not in (*CAPPED, *CAPPED_NARROW)


def measure_honest(count: int, seed: int, options: bool) -> dict[tuple[str, str, str], Tally]:
    """Return the tally of each (what, dtype, band); `what` is a group of kernels or its lse. options: whether every
    problem has one."""
    tallies: dict[tuple[str, str, str], Tally] = defaultdict(Tally)
    for dtype in DTYPES:
        for band, lengths in BANDS.items():
            started = time.monotonic()
            for problem in draw(dtype, lengths, count, seed):
                measure_problem(with_options(problem) if options else problem, band, tallies)
            print(f"{dtype} {band}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return tallies


def measure_problem(problem: Problem, band: str, tallies: dict[tuple[str, str, str], Tally]) -> None:
    """Add what all honest kernels do on one problem."""
    p = Prepared.of(make_call(problem), problem.corner)
    truth = Truth.of(p)
    for (group, accuracy, store), kernels in honest_groups(problem.dtype).items():
        budget = error_budget(p.call, causal_alignment=p.alignment, accuracy=accuracy, store=store)
        for name, kernel in kernels.items():
            if not takes(name, problem):
                continue
            output, lse = kernel(p)
            ratios = ratio(output, truth.output, budget.output)
            tallies[group, problem.dtype, band].add(ratios, f"{name}: {problem}")
            tallies[name + ".", problem.dtype, "all"].add(ratios, f"{name}: {problem}")
            if lse is not None and store:
                ratios = ratio(lse, truth.lse, budget.lse)
                tallies[f"lse, {group}", problem.dtype, band].add(ratios, f"{name}: {problem}")


def measure_power(dtype: str, setting: str, seeds: int) -> dict[str, float]:
    """Return, for each faulty kernel, the least over the seeds of the largest error / budget of class fused."""
    least = dict.fromkeys(FAULTY, float("inf"))
    for seed in range(seeds):
        problem = Problem.parse(setting).but(seed=seed, dtype=dtype)
        p = Prepared.of(make_call(problem), problem.corner)
        truth, budget = Truth.of(p), error_budget(p.call, causal_alignment=p.alignment)
        for name, kernel in FAULTY.items():
            least[name] = min(least[name], float(ratio(kernel(p)[0], truth.output, budget.output).max()))
    return least


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def honest_report(tallies: dict[tuple[str, str, str], Tally]) -> str:
    """Return the tables of the honest kernels: by band, and by kernel."""
    groups = list(dict.fromkeys((what, dtype) for what, dtype, band in tallies if band != "all"))
    by_band = []
    for what, dtype in sorted(groups, key=lambda g: (g[0].startswith("lse"), g[0], DTYPES.index(g[1]))):
        cells = [tallies[what, dtype, band] for band in BANDS]
        worst = [f"{cell.worst:.2f}" for cell in cells]
        by_band.append([what, dtype, *worst, f"{sum(cell.elements for cell in cells):.1e}"])
    kernels = list(dict.fromkeys(what for what, _, band in tallies if band == "all"))
    by_kernel = []
    for name in kernels:
        here = [tallies.get((name, dtype, "all")) for dtype in DTYPES]
        by_kernel.append([name.rstrip("."), *("" if cell is None else f"{cell.worst:.2f}" for cell in here)])
    first = table(["class", "dtype", *(f"keys {band}" for band in BANDS), "elements"], by_band)
    return first + "\n\n" + table(["kernel", *DTYPES], by_kernel)


def caught(least: float) -> str:
    """Return a number of the power table, bold where the fault is caught."""
    return f"**{least:.3g}**" if least > 1 else f"{least:.2f}"


def power_report(power: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return one table a dtype: faulty kernels down, settings across."""
    parts = []
    for dtype, settings in power.items():
        rows = [[name, *(caught(least[name]) for least in settings.values())] for name in FAULTY]
        parts.append(table([dtype, *(f"`{setting}`" for setting in settings)], rows))
    return "\n\n".join(parts)


def missed(power: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Return the faulty kernels that no setting of a dtype exposes, though one should."""
    return [
        f"{dtype}: {name}"
        for dtype, settings in power.items()
        for name in FAULTY
        if name not in UNSEEN[dtype] and max(least[name] for least in settings.values()) <= 1
    ]


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="Error over budget of honest and of faulty kernels.")
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
    text += f"seed {options.seed}" + (f"; {seeds} seeds a power setting" if power else "") + "\n\n"
    text += honest_report(tallies) + "\n" + (f"\n{power_report(power)}\n" if power else "")
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    above = [f"{tally.worst:.3f} budgets: {tally.where}" for tally in tallies.values() if tally.worst > 1]
    for line in above + missed(power):
        print("FAULT:", line, file=sys.stderr)
    return 1 if above or missed(power) else 0


if __name__ == "__main__":
    sys.exit(main())
