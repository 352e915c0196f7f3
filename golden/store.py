"""The stored vectors: how they lie in a folder, and how they are read, with nothing trusted.

A folder holds `manifest.json` and for each case `NAME.json` (the description) and `NAME.safetensors` (the tensors:
query, key, value, output and lse, and where the case has them attn_mask, key_lengths and gradients). Nothing is
unpickled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors

from attnspec.golden.cases import GoldenCase
from attnspec.spec import SPEC_VERSION, schemas
from attnspec.spec.call import Call, Gradients
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

VECTORS = Path(__file__).parent / "vectors"
MANIFEST = "manifest.json"
FORMAT = 1  # of the folder
LARGEST_JSON = 2**20  # bytes
LARGEST_HEADER = 2**16  # bytes, of a safetensors file
NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")

Shapes = dict[str, tuple[str, tuple[int, ...]]]  # of each tensor: dtype, shape


@dataclass(frozen=True)
class Golden:
    """A case with its stored tensors. call: inputs in the storage dtype; output: (batch, q_heads, q_len, value_dim)
    and lse: (batch, q_heads, q_len), the true values rounded once to float64; gradients: likewise, None where the
    problem asks for none."""

    case: GoldenCase
    call: Call
    output: torch.Tensor
    lse: torch.Tensor
    gradients: Gradients | None = None


@dataclass(frozen=True)
class Entry:
    """What the manifest says of a case: its name and the SHA-256 of its two files, in hexadecimal."""

    name: str
    case: str
    tensors: str


def load(name: str, folder: Path = VECTORS) -> Golden:
    """Return a stored case. Raises InputError for a name that the manifest does not list and for any defect."""
    for entry in manifest(folder):
        if entry.name == name:
            return read(entry, folder)
    raise InputError(f"{folder / MANIFEST}: lists no case {name!r}; see `attnspec list cases`")


def load_all(folder: Path = VECTORS) -> Iterator[Golden]:
    """Yield every stored case, in the manifest's order. Raises InputError like `load`."""
    return (read(entry, folder) for entry in manifest(folder))


def check(folder: Path = VECTORS) -> int:
    """Check every file against its schema, hash, shapes and dtypes; return the number of cases.

    Raises InputError, in one line, at the first defect, and for a file that the manifest does not list.
    """
    entries = manifest(folder)
    listed = {MANIFEST, *(name for entry in entries for name in files_of(entry.name))}
    for path in sorted(folder.iterdir()):
        if path.name not in listed:
            raise InputError(f"{path}: {MANIFEST} does not list it; remove it, or regenerate the vectors")
    for entry in entries:
        read(entry, folder)
    return len(entries)


def manifest(folder: Path = VECTORS) -> tuple[Entry, ...]:
    """Return the manifest's entries.

    Raises InputError where it breaks its schema, is of another version of the spec, or does not list each case once,
    in the order of the names.
    """
    path = folder / MANIFEST
    return _entries(read_bytes(path, LARGEST_JSON), path)


@lru_cache(maxsize=4)
def _entries(content: bytes, path: Path) -> tuple[Entry, ...]:
    data = parse_json(content, "golden-manifest", path)
    if (data["format"], data["spec_version"]) != (FORMAT, SPEC_VERSION):
        found, right = f"{data['format']} of spec {data['spec_version']}", f"{FORMAT} of spec {SPEC_VERSION}"
        raise InputError(f"{path}: has format {found}; {right} would be right: regenerate the vectors")
    entries = tuple(Entry(c["name"], c["sha256"]["case"], c["sha256"]["tensors"]) for c in data["cases"])
    for entry in entries:
        if not NAME.fullmatch(entry.name):
            raise InputError(f"{path}: case name {entry.name!r} is no slug; use a-z, 0-9, and '.' or '-' between them")
    for entry, following in pairwise(entries):
        if entry.name >= following.name:
            raise InputError(f"{path}: lists {following.name!r} after {entry.name!r}; names in order, once, are right")
    return entries


def read(entry: Entry, folder: Path) -> Golden:
    """Return the case of a manifest's entry. Raises InputError for any defect of its two files."""
    case_path, tensors_path = (folder / name for name in files_of(entry.name))
    case, shapes = _read_case(case_path, entry)
    content = read_bytes(tensors_path, LARGEST_HEADER + sum(size_of(spec) for spec in shapes.values()))
    check_hash(content, entry.tensors, tensors_path)
    tensors = parse_tensors(content, shapes, tensors_path)
    check_numbers(tensors, tensors_path)
    problem = case.problem
    lengths = tensors.get("key_lengths")
    if lengths is not None and not bool(((lengths >= 0) & (lengths <= problem.k_len)).all()):
        raise InputError(f"{tensors_path}: key_lengths is {lengths.tolist()}; 0 to {problem.k_len} would be right")
    call = Call(
        query=tensors["query"],
        key=tensors["key"],
        value=tensors["value"],
        attn_mask=tensors.get("attn_mask"),
        is_causal=problem.causal is not None,
        scale=problem.scale,
        enable_gqa=problem.q_heads != problem.kv_heads,
        key_lengths=tensors.get("key_lengths"),
        window_size=problem.window and problem.window.size,
        softcap=problem.softcap,
        grad_output=tensors.get("grad_output"),
        grad_lse=tensors.get("grad_lse"),
    )
    found = {name: tensors[f"grad_{name}"] for name in Gradients._fields if f"grad_{name}" in tensors}
    return Golden(case, call, tensors["output"], tensors["lse"], Gradients(**found) if found else None)


def _read_case(path: Path, entry: Entry) -> tuple[GoldenCase, Shapes]:
    """Return a case's description and the shapes of its tensors, which its problem must agree with."""
    content = read_bytes(path, LARGEST_JSON)
    check_hash(content, entry.case, path)
    data = parse_json(content, "case", path)
    if data["name"] != entry.name:
        raise InputError(f"{path}: its name is {data['name']!r}; {entry.name!r} would be right")
    try:
        problem = Problem.from_json(data["problem"])
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: problem: {error}") from None
    right = shapes_of(problem)
    given = {name: (spec["dtype"], tuple(spec["shape"])) for name, spec in data["tensors"].items()}
    for name in sorted(given.keys() | right.keys()):
        if given.get(name) != right.get(name):
            raise InputError(f"{path}: {name} is {_say(given.get(name))}; its problem makes it {_say(right.get(name))}")
    return GoldenCase(entry.name, problem, tuple(data["rules"]), data["note"]), right


def shapes_of(p: Problem) -> Shapes:
    """Return the dtype and shape of every stored tensor of a problem."""
    shapes: Shapes = {
        "query": (p.dtype, (p.batch, p.q_heads, p.q_len, p.head_dim)),
        "key": (p.dtype, (p.kv_batch, p.kv_heads, p.k_len, p.head_dim)),
        "value": (p.dtype, (p.kv_batch, p.kv_heads, p.k_len, p.value_dim)),
        "output": ("float64", (p.batch, p.q_heads, p.q_len, p.value_dim)),
        "lse": ("float64", (p.batch, p.q_heads, p.q_len)),
    }
    if p.mask:
        sizes = {"b": p.batch, "h": p.q_heads, "q": p.q_len, "k": p.k_len, "1": 1}
        dtype = "bool" if p.mask.kind == "bool" else p.dtype
        shapes["attn_mask"] = (dtype, tuple(sizes[letter] for letter in p.mask.shape))
    if p.key_lengths:
        shapes["key_lengths"] = ("int32", (p.batch,))
    if p.grad:
        shapes |= gradient_shapes_of(p, shapes)
    return shapes


def gradient_shapes_of(p: Problem, shapes: Shapes) -> Shapes:
    """Return the dtype and shape of what flows back in a problem, and of every true gradient."""
    found: Shapes = {"grad_output": (p.dtype, shapes["output"][1])}
    if p.grad == "lse":
        found["grad_lse"] = ("float64" if p.dtype == "float64" else "float32", shapes["lse"][1])
    for name in Gradients._fields:
        if name in shapes and shapes[name][0] != "bool":
            found[f"grad_{name}"] = ("float64", shapes[name][1])
    return found


def parse_tensors(content: bytes, shapes: Shapes, path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file's content. Raises InputError where they are not those of `shapes`."""
    header = int.from_bytes(content[:8], "little")
    if header > LARGEST_HEADER:
        raise InputError(f"{path}: claims a header of {header} bytes; at most {LARGEST_HEADER} would be right")
    try:
        tensors = parse_safetensors(content)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: is no whole safetensors file ({' '.join(str(error).split())[:200]})") from None
    for name in sorted(tensors.keys() | shapes.keys()):
        tensor = tensors.get(name)
        found = None if tensor is None else (dtype_name(tensor), tuple(tensor.shape))
        if found != shapes.get(name):
            raise InputError(f"{path}: {name} is {_say(found)}; its case says {_say(shapes.get(name))}")
    return tensors


def check_numbers(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Raise InputError for a number that no vector holds: all are finite but -inf in lse and mask; no truth is -0."""
    for name, tensor in tensors.items():
        allowed = tensor.isfinite()
        if name in ("lse", "attn_mask"):
            allowed |= tensor == -torch.inf
        if name in ("lse", "output", *(f"grad_{field}" for field in Gradients._fields)):
            allowed &= ~(tensor.signbit() & (tensor == 0))
        if not allowed.all():
            place = (~allowed).nonzero()[0].tolist()
            right = "a finite number or -inf" if name in ("lse", "attn_mask") else "a finite number"
            raise InputError(f"{path}: {name}{place} is {tensor[tuple(place)].item()}; {right} would be right")


def check_hash(content: bytes, right: str, path: Path) -> None:
    """Raise InputError where the SHA-256 of a file's content is not the manifest's."""
    found = sha256(content)
    if found != right:
        raise InputError(f"{path}: has {len(content)} bytes of SHA-256 {found}; {MANIFEST} says {right}")


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def read_bytes(path: Path, largest: int) -> bytes:
    """Return a file's content. Raises InputError where it cannot be read or is larger than `largest` bytes."""
    try:
        if not path.is_file():
            found = "is no regular file" if path.exists() else "is missing"
            raise InputError(f"{path}: {found}; regenerate the vectors")
        size = path.stat().st_size
        if size > largest:
            raise InputError(f"{path}: has {size} bytes; at most {largest} would be right")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def parse_json(content: bytes, schema: str, path: Path) -> Any:
    """Return the JSON of a file's content, which follows the schema. Raises InputError."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error})") from None
    schemas.check(data, schema, path)
    return data


def files_of(name: str) -> tuple[str, str]:
    """Return the names of a case's two files: the description and the tensors."""
    return f"{name}.json", f"{name}.safetensors"


def dtype_name(tensor: torch.Tensor) -> str:
    """Return PyTorch's name of a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def size_of(spec: tuple[str, tuple[int, ...]]) -> int:
    """Return the bytes of a tensor of this dtype and shape."""
    dtype, shape = spec
    count = 1
    for length in shape:
        count *= length
    return count * {"bool": 1, "bfloat16": 2, "float16": 2, "int32": 4, "float32": 4, "float64": 8}[dtype]


def _say(spec: tuple[str, tuple[int, ...]] | None) -> str:
    return "absent" if spec is None else f"{spec[0]} {list(spec[1])}"
