"""What a run on a GPU is measured by: the work of a pass, the table, and the ratios that are asked for.

Nothing here needs a GPU or Triton; `gpu_check.py` measures. Times are in seconds, rates in floating-point operations or
bytes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

PASSES = ("forward", "backward", "decode")
TARGETS = {"forward": 0.8, "backward": 0.7}  # of the rate of PyTorch's flash kernel
LENGTHS = tuple(2**power for power in range(10, 16))
HEAD_DIMS = (64, 128)
TOKENS = 16384  # of a batch: fewer sequences where they are longer (Dao 2023, section 4.1)
WIDTH = 2048  # of all heads together
DECODED = 16  # sequences that are decoded together, with four query heads for each key head
GROUP = 4
OURS, FLASH, CUDNN = "triton_flash", "torch flash", "torch cudnn"


@dataclass(frozen=True)
class Workload:
    """One pass over a batch of equal sequences. kind: of `PASSES`; a decode has one query for each sequence."""

    kind: str
    length: int
    head_dim: int
    causal: bool

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return DECODED if self.kind == "decode" else max(TOKENS // self.length, 1)

    @property
    def heads(self) -> int:
        """How many query heads there are."""
        return WIDTH // self.head_dim

    @property
    def kv_heads(self) -> int:
        """How many key heads there are."""
        return self.heads // GROUP if self.kind == "decode" else self.heads

    @property
    def q_len(self) -> int:
        """How many queries a sequence has."""
        return 1 if self.kind == "decode" else self.length

    @property
    def operations(self) -> float:
        """Floating-point operations: 4 Lq Lk d a head, for QK^T and PV; half of that where the triangle hides half; 2.5
        times as many backward, for five products instead of two (Dao 2023, section 4.1)."""
        forward = 4.0 * self.batch * self.heads * self.q_len * self.length * self.head_dim
        return forward * (0.5 if self.causal else 1.0) * (2.5 if self.kind == "backward" else 1.0)

    @property
    def key_bytes(self) -> float:
        """Bytes of keys and values in bfloat16, which a decode reads once: what bounds its time."""
        return 2.0 * 2.0 * self.batch * self.kv_heads * self.length * self.head_dim


@dataclass(frozen=True)
class Peaks:
    """What the device was measured to do: multiply, operations a second of a large matmul; copy, bytes a second."""

    multiply: float
    copy: float


@dataclass(frozen=True)
class Measured:
    """A workload and the median seconds that each kernel took, by name; a kernel that refused it is absent."""

    workload: Workload
    seconds: dict[str, float]

    def rate(self, kernel: str) -> float | None:
        """Return a kernel's operations a second."""
        return self.workload.operations / self.seconds[kernel] if kernel in self.seconds else None

    def ratio(self) -> float | None:
        """Return our rate over that of PyTorch's flash kernel; None where either did not run."""
        ours, flash = self.rate(OURS), self.rate(FLASH)
        return None if ours is None or flash is None else ours / flash

    def share(self, peaks: Peaks) -> float | None:
        """Return our share of the measured peak: of the matmul, or of the copy for a decode."""
        if OURS not in self.seconds:
            return None
        if self.workload.kind == "decode":
            return self.workload.key_bytes / self.seconds[OURS] / peaks.copy
        return self.workload.operations / self.seconds[OURS] / peaks.multiply


def workloads(
    lengths: Iterable[int] = LENGTHS, head_dims: Iterable[int] = HEAD_DIMS, kinds: Iterable[str] = PASSES
) -> Iterator[Workload]:
    """Yield what is timed: each pass, causal and not, a decode without a triangle."""
    lengths, head_dims = tuple(lengths), tuple(head_dims)
    for kind in kinds:
        for head_dim in head_dims:
            for causal in (False,) if kind == "decode" else (False, True):
                for length in lengths:
                    yield Workload(kind, length, head_dim, causal)


def shortfalls(measured: Iterable[Measured]) -> Iterator[str]:
    """Yield a line for each workload that has a target and misses it, or that did not run at all."""
    for row in measured:
        work, ratio = row.workload, row.ratio()
        name = f"{work.kind}, length {work.length}, dim {work.head_dim}{', causal' if work.causal else ''}"
        if OURS not in row.seconds:
            yield f"{name}: {OURS} did not run"
        elif work.kind in TARGETS and ratio is None:
            yield f"{name}: {FLASH} did not run, so that nothing is compared"
        elif work.kind in TARGETS and ratio is not None and ratio < TARGETS[work.kind]:
            yield f"{name}: {ratio:.2f} of {FLASH}, {TARGETS[work.kind]} is asked for"


def page(device: str, versions: str, peaks: Peaks, measured: Iterable[Measured]) -> list[str]:
    """Return the table in Markdown, as lines."""
    lines = [
        "# Triton FlashAttention on a GPU",
        "",
        f"{device}; {versions}. bfloat16, median times.",
        f"Measured peak: {peaks.multiply / 1e12:.0f} TFLOP/s of a matmul, {peaks.copy / 1e9:.0f} GB/s of a copy.",
        f"Share: of the matmul; of the copy for a decode, which reads each key once. Ratio: {OURS} over {FLASH}.",
        "",
        f"| pass | dim | causal | length | batch x heads | {OURS} TFLOP/s | {FLASH} | {CUDNN} | share | ratio |",
        "|---|--:|---|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in measured:
        work = row.workload
        rates = [shown(None if rate is None else rate / 1e12, ".1f") for rate in map(row.rate, (OURS, FLASH, CUDNN))]
        place = f"{work.kind} | {work.head_dim} | {'yes' if work.causal else 'no'} | {work.length}"
        numbers = " | ".join((*rates, shown(row.share(peaks), ".0%"), shown(row.ratio(), ".2f")))
        lines.append(f"| {place} | {work.batch} x {work.heads} | {numbers} |")
    return lines


def shown(number: float | None, form: str) -> str:
    """Return a number in a format, a dash for none."""
    return "-" if number is None else format(number, form)


def to_json(device: str, versions: str, peaks: Peaks, measured: Iterable[Measured]) -> dict[str, Any]:
    """Return what was measured as a JSON object."""
    rows = [asdict(row) | {"ratio": row.ratio(), "share": row.share(peaks)} for row in measured]
    return {"device": device, "versions": versions, "peaks": asdict(peaks), "rows": rows}
