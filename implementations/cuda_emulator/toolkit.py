"""Where the compiler and the headers of CUDA are on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from attnspec.spec.errors import InputError

HEADERS = ("cuda_fp16.h", "cuda_bf16.h", "vector_types.h", "crt/host_defines.h")
OLDEST = 11  # of g++, for its C++20
PACKAGES = "nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl"


def run(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a tool to its end. A sanitizer that is loaded in front of this process is kept out of the tool's."""
    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(command, capture_output=True, check=False, env=variables)


def output_of(command: Sequence[str]) -> str:
    """Return what a tool prints."""
    return run(command).stdout.decode("utf-8", "replace")


def compiler() -> str:
    """Return the path of g++: what the variable CXX names, or g++ on the PATH. Raises InputError where there is none,
    or one that is no g++ of C++20."""
    named = os.environ.get("CXX") or "g++"
    found = shutil.which(named)
    if found is None:
        raise InputError(
            f"no C++ compiler: {named!r} is not on the PATH; install g++ {OLDEST} or newer, or name one in CXX"
        )
    version(found)
    return found


@cache
def version(path: str) -> str:
    """Return a compiler's name and version. Raises InputError where it is no g++ of `OLDEST` or newer."""
    first = output_of([path, "--version"]).partition("\n")[0]
    major = output_of([path, "-dumpversion"]).partition(".")[0]
    if "clang" in first or not major.strip().isdigit() or int(major) < OLDEST:
        raise InputError(f"{path} is {first.strip()!r}: the emulator needs g++ {OLDEST} or newer, name it in CXX")
    return first


def include_folders() -> tuple[Path, ...]:
    """Return the folders of CUDA's headers: the toolkit's at CUDA_HOME or beside nvcc, or those of the PyPI packages of
    the optional dependency group `cuda`. Raises InputError where they are nowhere, or CUDA_HOME lacks them."""
    home = os.environ.get("CUDA_HOME")
    if home:
        folder = Path(home) / "include"
        if not _whole(folder):
            raise InputError(f"CUDA_HOME is {home}, where include/ lacks {_lacking(folder)}: name a CUDA toolkit")
        return _with_cccl(folder)
    nvcc = shutil.which("nvcc")
    beside = (Path(nvcc).resolve().parent.parent / "include",) if nvcc else ()
    for folder in (*beside, Path("/usr/local/cuda/include"), *_packaged()):
        if _whole(folder):
            return _with_cccl(folder)
    raise InputError(
        f"no headers of CUDA: set CUDA_HOME to a toolkit, or install {PACKAGES} (pip install 'attnspec[cuda]')"
    )


def _packaged() -> tuple[Path, ...]:
    spec = importlib.util.find_spec("nvidia")
    roots = tuple(Path(root) for root in (spec.submodule_search_locations or ())) if spec else ()
    return tuple(folder for root in roots for folder in sorted(root.glob("*/include"), reverse=True))


def _with_cccl(folder: Path) -> tuple[Path, ...]:
    return (folder, *(x for x in (folder / "cccl",) if x.is_dir()))


def _lacking(folder: Path) -> str:
    return next((name for name in HEADERS if not (folder / name).is_file()), "")


def _whole(folder: Path) -> bool:
    return not _lacking(folder)
