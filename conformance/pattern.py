"""In words, where the wrong elements are: "all of head 4-7, row >= 16"."""

from __future__ import annotations

import torch


def describe(wrong: torch.Tensor, axes: tuple[str, ...]) -> str:
    """Return the pattern of a bool tensor, one name an axis: the indices that occur on each axis, and whether all
    their combinations do. An axis that occurs whole is left out."""
    if not bool(wrong.any()):
        return "none"
    parts, box = [], 1
    for axis, name in enumerate(axes):
        others = [other for other in range(wrong.ndim) if other != axis]
        hit = wrong.any(dim=others) if others else wrong
        indices = hit.nonzero().flatten().tolist()
        box *= len(indices)
        if len(indices) < wrong.shape[axis]:
            parts.append(f"{name} {ranges(indices, wrong.shape[axis])}")
    whole = int(wrong.sum()) == box
    if not parts:
        return "every element" if whole else "no axis stands out"
    return f"{'all' if whole else 'some'} with {', '.join(parts)}"


def everywhere(got: torch.Tensor) -> str:
    """Return "0 everywhere" or "NaN everywhere" of a tensor that is; nothing of others, and of a single element."""
    if got.numel() < 2:
        return ""
    return "0 everywhere" if not bool(got.any()) else "NaN everywhere" if bool(got.isnan().all()) else ""


def ranges(indices: list[int], size: int) -> str:
    """Return sorted indices in short: `>= 128`, `4-7`, `even`, `0, 3, 9-12`; at most five runs are spelled out."""
    runs: list[tuple[int, int]] = []
    for i in indices:
        if runs and runs[-1][1] == i - 1:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    if len(runs) == 1 and runs[0][1] == size - 1 and 0 < runs[0][0] < size - 1:
        return f">= {runs[0][0]}"
    if len(runs) > 2 and indices == list(range(indices[0] % 2, size, 2)):
        return "odd" if indices[0] % 2 else "even"
    shown = ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs[:5])
    return shown + (f" and {len(runs) - 5} more runs" if len(runs) > 5 else "")
