"""Compile the kernels for a GPU that need not be there: NVRTC to cubin, and what each kernel takes of the GPU."""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from attnspec.implementations.cuda_flash.builds import SOURCE, Build
from attnspec.spec.errors import InputError, Unavailable

ARCHS = ("sm_80", "sm_90", "sm_100")
ARCH = re.compile(r"sm_(\d+)[af]?")
OLDEST = 80  # mma.sync m16n8k16
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
FIGURES = {
    "registers": re.compile(r"Used (\d+) registers"),
    "stack": re.compile(r"(\d+) bytes stack frame"),
    "spill_stores": re.compile(r"(\d+) bytes spill stores"),
    "spill_loads": re.compile(r"(\d+) bytes spill loads"),
    "static_shared": re.compile(r"(\d+) bytes smem"),
}
ERROR = re.compile(r"^(?P<place>\S+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\S+)?: (?P<what>.*)$", re.M)


class Usage(NamedTuple):
    """What ptxas says of a kernel: registers of a thread; bytes of stack, spills and static shared memory."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    static_shared: int

    @property
    def leaves_registers(self) -> bool:
        """Whether anything lies in local memory: a spill, or an array that is indexed as the program runs."""
        return bool(self.stack or self.spill_stores or self.spill_loads)


class Compiled(NamedTuple):
    """code: a cubin (`cuda.core.ObjectCode`); usage: by the kernel's name."""

    code: Any
    usage: dict[str, Usage]


def compile_cubin(build: Build, arch: str, source: Path = SOURCE) -> Compiled:
    """Return a build compiled for an architecture. Needs neither a GPU nor its driver.

    arch: `sm_80` or newer. source: a file in place of flash.cu. Raises Unavailable without the packages of the
    dependency group `cuda`; InputError, one line, for an architecture that is too old or that NVRTC does not know, and
    for a source that does not compile: the first error.
    """
    number = ARCH.fullmatch(arch)
    if number is None or int(number[1]) < OLDEST:
        raise InputError(f"arch {arch!r}: use sm_{OLDEST} or newer, such as {', '.join(ARCHS)}")
    core = cuda_core()
    log = io.StringIO()
    given: dict[str, Any] = {
        "arch": arch,
        "std": "c++17",
        "name": source.name,
        "include_path": [str(source.parent), *include_folders()],
        "define_macro": list(build.macros().items()),
        "ptxas_options": "-v",
        "use_bundled_headers": True,
    }
    if include_folders():
        del given["use_bundled_headers"]
    try:
        program = core.Program(source.read_text(encoding="utf-8"), "c++", core.ProgramOptions(**given))
        code = program.compile("cubin", logs=log)
    except Exception as error:
        raise _told(f"{error}\n{log.getvalue()}", arch, source) from None
    return Compiled(code, usages(log.getvalue()))


def include_folders() -> tuple[str, ...]:
    """Return the headers of the toolkit at CUDA_HOME, where it is set; else NVRTC's own are used."""
    home = os.environ.get("CUDA_HOME")
    return (str(Path(home) / "include"),) if home else ()


def compiler_version() -> str:
    """Return the version of the NVRTC package. Raises Unavailable where it is not installed."""
    try:
        return metadata.version("nvidia-cuda-nvrtc")
    except metadata.PackageNotFoundError:
        raise Unavailable("needs nvidia-cuda-nvrtc: pip install 'attnspec[cuda]'") from None


def usages(log: str) -> dict[str, Usage]:
    """Return what a verbose log of ptxas says of each kernel."""
    return dict(_usages(log))


def _usages(log: str) -> Iterator[tuple[str, Usage]]:
    names = list(ENTRY.finditer(log))
    ends = [name.start() for name in names[1:]] + [len(log)]
    for name, end in zip(names, ends, strict=True):
        told = log[name.end() : end]
        figures = {what: pattern.search(told) for what, pattern in FIGURES.items()}
        yield name[1], Usage(**{what: int(found[1]) if found else 0 for what, found in figures.items()})


def cuda_core() -> ModuleType:
    """Return the module `cuda.core`. Raises Unavailable where it is not installed."""
    try:
        core = importlib.import_module("cuda.core")
        return core if hasattr(core, "Program") else importlib.import_module("cuda.core.experimental")
    except ImportError:
        raise Unavailable(
            "needs cuda-core, cuda-bindings and nvidia-cuda-nvrtc: pip install 'attnspec[cuda]'"
        ) from None


def _told(log: str, arch: str, source: Path) -> InputError:
    if "--gpu-architecture" in log or "invalid value" in log.lower():
        return InputError(f"arch {arch!r}: NVRTC does not know it; use one such as {', '.join(ARCHS)}")
    found = ERROR.search(log)
    first = f"{found['place']}:{found['line']}: {found['what']}" if found else " ".join(log.split())
    return InputError(f"{source.name} does not compile for {arch}: {first[:300]}")
