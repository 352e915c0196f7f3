"""The registry: backends by name, found by the entry points of the group `attnspec.backends`.

An entry point's value is a backend object, or a function of no arguments that returns one or raises `Unavailable`.
Names are read from metadata alone: nothing is imported, not even torch, until a backend is loaded.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any, cast

from attnspec.spec.capabilities import Backend, Capabilities
from attnspec.spec.errors import InputError, Unavailable, did_you_mean

GROUP = "attnspec.backends"
EXPECTATIONS = Path(__file__).parent / "expectations"


def backend_names() -> tuple[str, ...]:
    """Return the names of the registered backends, sorted. Imports no backend."""
    return tuple(sorted({entry.name for entry in metadata.entry_points(group=GROUP)}))


def load_backend(name: str) -> Backend:
    """Return the backend registered as `name`.

    Raises InputError, one line, for a name that nobody registered or that several distributions did, and for an object
    that is no backend; Unavailable, with the reason in one line, where it cannot be imported or says so itself.
    """
    entry = _entry(name)
    try:
        found = entry.load()
        if not _is_backend(found) and callable(found):
            found = found()
    except Unavailable as reason:
        raise Unavailable(_one_line(reason)) from None
    except (Exception, SystemExit) as error:
        raise Unavailable(f"{entry.value} raised {type(error).__name__}: {_one_line(error)}") from error
    if not _is_backend(found):
        raise InputError(
            f"backend {name!r}: {entry.value} gives {type(found).__name__}, no backend; give a callable object with a "
            "name (str) and capabilities (attnspec.spec.capabilities.Capabilities), or a function that returns one"
        )
    return cast(Backend, found)


def load_cuda_file(source: Path, entry: str, sanitize: str | None = None) -> Backend:
    """Return a kernel of a CUDA file, run on the CPU, as a backend.

    source: a .cu file, with a launch description beside it. sanitize: None, `thread` or `address`. Raises InputError,
    one line: no compiler or headers, the compiler's first error, a description that does not fit.
    """
    from attnspec.implementations.cuda_emulator.cuda_file import CudaFile

    return CudaFile(source, entry, sanitize)


def sanitized(name: str, backend: Any, sanitize: str) -> Backend:
    """Return a backend as compiled with a sanitizer, by its method `sanitized(sanitize)`. Raises InputError where it
    has none."""
    build = getattr(backend, "sanitized", None)
    if not callable(build):
        raise InputError(
            f"target {name!r} has no sanitizer: use a CUDA file (my_kernel.cu:kernel), or leave --sanitize out"
        )
    return cast(Backend, build(sanitize))


def sanitizer_environment(sanitize: str, log: Path) -> dict[str, str]:
    """Return the variables that a process is started with to run kernels under a sanitizer. Raises InputError."""
    from attnspec.implementations.cuda_emulator.sanitizers import environment

    return environment(sanitize, log)


def status(name: str) -> str:
    """Return "available", or "unavailable: " and the reason in one line. Raises InputError for an unknown name."""
    if name not in backend_names():
        raise unknown(name)
    try:
        load_backend(name)
    except (InputError, Unavailable) as reason:
        return f"unavailable: {reason}"
    return "available"


def expectations_path(name: str) -> Path | None:
    """Return the file of recorded deviations that ships for a backend, `expectations/<name>.json`, or None."""
    shipped = {path.stem: path for path in EXPECTATIONS.glob("*.json")}
    return shipped.get(name)


def _entry(name: str) -> metadata.EntryPoint:
    entries = tuple(metadata.entry_points(group=GROUP, name=name))
    if not entries:
        raise unknown(name)
    if len(entries) > 1:
        owners = " and ".join(f"{entry.dist.name if entry.dist else 'unknown'} ({entry.value})" for entry in entries)
        raise InputError(f"backend {name!r} is registered by {owners}: uninstall all but one")
    return entries[0]


def unknown(name: str) -> InputError:
    """Return the error for a name that no backend has."""
    known = backend_names()
    meant = did_you_mean(name, known)
    return InputError(f"unknown backend {name!r}: use one of {', '.join(known) or '(none is registered)'}{meant}")


def _is_backend(found: Any) -> bool:
    """Whether the object is a backend itself. A class is not: called without arguments, it makes one."""
    if isinstance(found, type) or not callable(found):
        return False
    return isinstance(getattr(found, "name", None), str) and isinstance(
        getattr(found, "capabilities", None), Capabilities
    )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
