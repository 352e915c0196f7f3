"""How two sets of vectors differ, in words a person can read."""

from __future__ import annotations

from pathlib import Path

import torch

from attnspec.golden.files import Entry, dtype_name, manifest
from attnspec.golden.store import read_parts

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes an element


def diff(a: Path, b: Path) -> list[str]:
    """Return a line for each difference of two folders; none for equal ones. Raises InputError like `load`."""
    in_a = {entry.name: entry for entry in manifest(a)}
    in_b = {entry.name: entry for entry in manifest(b)}
    lines = []
    for name in sorted(in_a.keys() | in_b.keys()):
        if name not in in_b:
            lines.append(f"{name}: only in {a}")
        elif name not in in_a:
            lines.append(f"{name}: only in {b}")
        elif in_a[name] != in_b[name]:
            lines += _of_case(in_a[name], a, in_b[name], b)
    return lines


def _of_case(entry_a: Entry, a: Path, entry_b: Entry, b: Path) -> list[str]:
    """Return the differences of a case that both folders hold."""
    (case_a, tensors_a), (case_b, tensors_b) = read_parts(entry_a, a), read_parts(entry_b, b)
    lines = [
        f"{entry_a.name}: {field} {mine} and {other}"
        for field in ("problem", "rules", "note")
        if (mine := getattr(case_a, field)) != (other := getattr(case_b, field))
    ]
    for name in sorted(tensors_a.keys() | tensors_b.keys()):
        if name not in tensors_a or name not in tensors_b:
            lines.append(f"{entry_a.name}: {name} only in {a if name in tensors_a else b}")
        elif line := of_tensors(tensors_a[name], tensors_b[name]):
            lines.append(f"{entry_a.name}: {name}: {line}")
    return lines or [f"{entry_a.name}: same description and tensors, written differently"]


def of_tensors(a: torch.Tensor, b: torch.Tensor) -> str | None:
    """Return how the bits of two tensors differ: how many elements, the first place, both values. None: not at all."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{dtype_name(a)} {list(a.shape)} and {dtype_name(b)} {list(b.shape)}"
    differs = a.view(BITS[a.element_size()]) != b.view(BITS[b.element_size()])
    places = differs.nonzero()
    if not len(places):
        return None
    first = places[0].tolist()
    values = f"{a[tuple(first)].item()!r} and {b[tuple(first)].item()!r}"
    return f"{len(places)} of {a.numel()} elements differ, first at {first}: {values}"
