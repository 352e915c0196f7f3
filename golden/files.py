"""The files of a folder of vectors: the manifest, the two files of a case, and how they are read with nothing trusted.

A folder holds `manifest.json` and for each case `NAME.json` (the description) and `NAME.safetensors` (the tensors).
Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors

from attnspec.golden.shapes import Shapes
from attnspec.spec import SPEC_VERSION, schemas
from attnspec.spec.errors import InputError

VECTORS = Path(__file__).parent / "vectors"
MANIFEST = "manifest.json"
FORMAT = 1  # of the folder
LARGEST_JSON = 2**20  # bytes
LARGEST_HEADER = 2**16  # bytes, of a safetensors file
NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")

UNBOUNDED = ("lse", "lses", "attn_mask")  # tensors that may hold -inf


@dataclass(frozen=True)
class Entry:
    """What the manifest says of a case: its name, its form, and the SHA-256 of its two files, in hexadecimal."""

    name: str
    form: str
    case: str
    tensors: str


def manifest(folder: Path = VECTORS) -> tuple[Entry, ...]:
    """Return the manifest's entries.

    Raises InputError where it breaks its schema, is of another version of the spec, or does not list each case once,
    in the order of the names.
    """
    path = folder / MANIFEST
    if not folder.is_dir():
        raise InputError(f"{folder}: is no folder; name one of vectors, which `attnspec golden regenerate` makes")
    return _entries(read_bytes(path, LARGEST_JSON), path)


@lru_cache(maxsize=4)
def _entries(content: bytes, path: Path) -> tuple[Entry, ...]:
    data = parse_json(content, "golden-manifest", path)
    if (data["format"], data["spec_version"]) != (FORMAT, SPEC_VERSION):
        found, right = f"{data['format']} of spec {data['spec_version']}", f"{FORMAT} of spec {SPEC_VERSION}"
        raise InputError(f"{path}: has format {found}; {right} would be right: regenerate the vectors")
    try:
        entries = tuple(Entry(c["name"], c["form"], c["sha256"]["case"], c["sha256"]["tensors"]) for c in data["cases"])
    except (KeyError, TypeError):
        schemas.check(data, "golden-manifest", path)  # says what is wrong with it
        raise
    for entry in entries:
        if not NAME.fullmatch(entry.name):
            raise InputError(f"{path}: case name {entry.name!r} is no slug; use a-z, 0-9, and '.' or '-' between them")
    for entry, following in pairwise(entries):
        if entry.name >= following.name:
            raise InputError(f"{path}: lists {following.name!r} after {entry.name!r}; names in order, once, are right")
    return entries


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
            raise InputError(f"{path}: {name} is {say(found)}; its case says {say(shapes.get(name))}")
    return tensors


def check_numbers(tensors: dict[str, torch.Tensor], truths: Collection[str], path: Path) -> None:
    """Raise InputError for a number that no vector holds: all are finite but those of `UNBOUNDED`, which may be -inf,
    and no truth is -0. truths: the names of the true tensors."""
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            tensor = tensor.float()  # torch tells nothing of these numbers themselves
        allowed = tensor.isfinite()
        if name in UNBOUNDED:
            allowed |= tensor == -torch.inf
        if name in truths:
            allowed &= ~(tensor.signbit() & (tensor == 0))
        if not allowed.all():
            place = (~allowed).nonzero()[0].tolist()
            right = "a finite number or -inf" if name in UNBOUNDED else "a finite number"
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
    """Return the JSON of a file's content, which follows the schema. Raises InputError.

    The installed vectors are not held to it each time they are read: `store.check` does that, and their hashes tell the
    rest.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON ({error})") from None
    if path.parent != VECTORS:
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
    narrow = {"bool": 1, "int8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float16": 2}
    return count * (narrow | {"int32": 4, "float32": 4, "float64": 8})[dtype]


def say(spec: tuple[str, tuple[int, ...]] | None) -> str:
    """Return a tensor's dtype and shape in words."""
    return "absent" if spec is None else f"{spec[0]} {list(spec[1])}"
