"""Compile a CUDA file for the CPU, once: the shared object is kept under the hash of all that went into it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attnspec.implementations.cuda_emulator.launch import Library
from attnspec.implementations.cuda_emulator.sanitizers import check_loaded, sanitizer_flags
from attnspec.implementations.cuda_emulator.toolkit import compiler, include_folders, run, version
from attnspec.implementations.cuda_emulator.translation import entries_of, translated
from attnspec.spec.errors import InputError

HEADERS = Path(__file__).parent
STANDARD = (
    "-std=c++20",
    "-fPIC",
    "-fno-strict-aliasing",
    "-fstack-clash-protection",  # no frame is large enough to step over the page below a stack
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
)
OPTIMISED = ("-O2", "-g1")
ERROR = re.compile(r"^(?P<place>[^\s:][^:\n]*:\d+)(?::\d+)?: (?:fatal )?[Ee]rror: (?P<what>.*)$", re.M)
INLINE = re.compile(r"\b(?:asm|__asm__|__asm)\b")
LOADING = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('loaded')"
INITIALISERS = "look at the initialisers of its variables, which run before any kernel"
LOADING_SECONDS = 20  # for the initialisers of a file's variables, and a Python that runs them


def build(source: Path, flags: Sequence[str] = (), sanitize: str | None = None) -> Library:
    """Compile a CUDA file and return its kernels, ready to be launched on the CPU.

    source: a file whose kernels are `extern "C" __global__ void` and that launches none by <<<>>>. flags: more options
    of g++, such as -DNAME or -Ifolder. sanitize: None, `thread`, or `address` (with undefined behaviour), which need
    the sanitizer's runtime in the process (`sanitizers.environment`). Raises InputError, one line: no compiler, no
    headers, no such file, the compiler's first error, no kernel in the file, code that does not load.
    """
    check_file(source)
    source = Path(source).resolve()
    check_loaded(sanitize)
    options = (*STANDARD, *(sanitizer_flags(sanitize) or OPTIMISED), *flags)
    text = preprocess(source, options)
    entries = entries_of(text)
    if not entries:
        raise InputError(f'{source}: no kernel; define one as extern "C" __global__ void name(...)')
    try:
        code = translated(text)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return Library(shared_object(source, code, options), entries, sanitize)


def check_file(source: Path) -> None:
    """Raise InputError where a CUDA file does not exist."""
    try:
        exists = source.is_file()
    except OSError as error:
        raise InputError(f"CUDA file {str(source)[:200]!r} cannot be read: {error.strerror}") from None
    if not exists:
        raise InputError(f"CUDA file {str(source)!r} does not exist (looked in {Path.cwd()})")


def preprocess(source: Path, options: Sequence[str] = STANDARD) -> str:
    """Return a CUDA file with its includes and macros written out. Raises InputError with the first error."""
    folders = (HEADERS, *include_folders())
    searched = [f"-I{folder}" for folder in (source.parent, *folders)]
    given = [*options, "-x", "c++", *searched, "-include", str(HEADERS / "cuda_emulator.h"), "-E", str(source)]
    return _run(source, given).decode("utf-8", "replace")


def shared_object(source: Path, code: str, options: Sequence[str]) -> Path:
    """Return the compiled code: from the cache, or new there. Raises InputError with the compiler's first error, and
    for code that does not load."""
    facts = "\0".join((code, *options, version(compiler()), platform.machine()))
    folder = cache_folder()
    kept = folder / f"{source.stem}-{hashlib.sha256(facts.encode()).hexdigest()[:32]}.so"
    if kept.is_file():
        return kept
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as place:
        text, made = Path(place) / f"{source.stem}.ii", Path(place) / kept.name
        text.write_text(code)
        _run(source, [*options, "-fpreprocessed", "-x", "c++-cpp-output", str(text), "-shared", "-o", str(made)])
        check_loads(source, made)
        os.replace(made, kept)  # whole or not at all, also where two processes compile at once
    return kept


def check_loads(source: Path, made: Path) -> None:
    """Load compiled code in a process of its own, for what a file runs as it is loaded: the initialisers of its
    variables. Raises InputError where that does not end in time, ends the process, or fails."""
    command = [sys.executable, "-I", "-c", LOADING, str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LOADING_SECONDS)
    except subprocess.TimeoutExpired:
        raise InputError(f"{source} does not load within {LOADING_SECONDS} s: {INITIALISERS}") from None
    if done.stdout.endswith("loaded\n"):
        return
    said = done.stderr.strip().splitlines() or ["the process ended"]
    what = f"signal {-done.returncode}" if done.returncode < 0 else said[-1][:300]
    raise InputError(f"{source} does not load ({what}): {INITIALISERS}")


def cache_folder() -> Path:
    """Return the folder of compiled files, made where it is missing: `attnspec` in the user's cache, named by
    ATTNSPEC_CACHE or XDG_CACHE_HOME where set, or a private temporary one where that cannot be written."""
    named = os.environ.get("ATTNSPEC_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(named) if named else home / "attnspec"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    except OSError:
        pass
    if named:
        raise InputError(f"ATTNSPEC_CACHE is {named}, which cannot be written: name a folder of your own")
    private = Path(tempfile.gettempdir()) / f"attnspec-{os.getuid()}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.is_symlink() or private.stat().st_uid != os.getuid():
        raise InputError(f"{private} belongs to someone else: name a folder of your own in ATTNSPEC_CACHE")
    return private


def _run(source: Path, options: Sequence[str]) -> bytes:
    ran = run([compiler(), *options])
    if ran.returncode == 0:
        return ran.stdout
    raise InputError(f"{source} does not compile: {_first_error(source, ran.stderr.decode('utf-8', 'replace'))}")


def _first_error(source: Path, log: str) -> str:
    found = ERROR.search(log)
    if found is None:
        first = next((line.strip() for line in log.splitlines() if "error" in line), log.strip().partition("\n")[0])
        return first[:300]
    place, what = found["place"], found["what"][:300]
    path, _, number = place.rpartition(":")
    lines = Path(path).read_text(errors="replace").splitlines()[: int(number)] if Path(path).is_file() else []
    if "Assembler messages" in log or INLINE.search(what):
        at = next((i for i in range(len(lines), 0, -1) if INLINE.search(lines[i - 1])), int(number))
        return f"{path}:{at}: inline assembly ({what}): the CPU has no PTX; use C++ there, by #ifdef CUDA_EMULATOR"
    if lines and "<<<" in lines[-1]:
        what += "; the emulator launches the kernels itself: leave <<<>>> out, by #ifndef CUDA_EMULATOR"
    return f"{place}: {what}"
