"""From what the user wrote to a kernel: a backend's name, `package.module:attr`, `path/to/file.py:attr`, or
`path/to/file.cu:kernel`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from attnspec.conformance.kernel import Kernel, in_one_line
from attnspec.conformance.signature import Claims, claims_of
from attnspec.implementations.registry import backend_names, load_backend, load_cuda_file, sanitized
from attnspec.spec.capabilities import Capabilities
from attnspec.spec.errors import InputError, Unavailable, did_you_mean

IN_PYTHON = "package.module:attr or path/to/file.py:attr"
FORMS = "a backend's name, package.module:attr, path/to/file.py:attr or path/to/file.cu:kernel"


def resolve(
    target: str,
    accuracy: str | None = None,
    causal_alignment: str | None = None,
    device: str | None = None,
    sanitize: str | None = None,
    alibi_alignment: str | None = None,
) -> Kernel:
    """Return the kernel that a target names, with what the user overrides.

    accuracy: the class it is held to; causal_alignment, alibi_alignment: dialects; only for bare callables, whose
    declaration they are. device: by torch's name, by default the first that is declared. sanitize: `thread` or
    `address`, for a CUDA file and backends that have it. Raises InputError, one line, where no kernel can be loaded:
    no such file, module or attribute, not callable, an exception at import, a CUDA file that does not compile or fit
    its description; and for a device that cannot be used.
    """
    found = _found(target, sanitize)
    overrides = {"accuracy": accuracy, "causal_alignment": causal_alignment, "alibi_alignment": alibi_alignment}
    kernel = _kernel(target, found, {name: value for name, value in overrides.items() if value})
    device = device or kernel.capabilities.devices[0]
    check_device(device, kernel)
    return replace(kernel, device=device)


def _found(target: str, sanitize: str | None) -> Any:
    place, _, entry = target.rpartition(":")
    if place.endswith(".cu"):
        return load_cuda_file(Path(place), entry, sanitize)
    if ":" in target or target not in backend_names():
        found = load_attribute(target)
    else:
        try:
            found = load_backend(target)
        except Unavailable as reason:
            raise InputError(f"backend {target!r} is unavailable: {reason}") from None
    return sanitized(target, found, sanitize) if sanitize else found


def _kernel(target: str, found: Any, overrides: dict[str, str]) -> Kernel:
    declared = getattr(found, "capabilities", None)
    if not isinstance(declared, Capabilities):
        if declared is not None:
            raise InputError(f"target {target!r}: its capabilities are no attnspec.spec.capabilities.Capabilities")
        claims: Claims = claims_of(found, target, **overrides)
        name = getattr(found, "__name__", type(found).__name__)
        return Kernel(target, name, claims.run, claims.capabilities, True, claims.flagless_gqa, notes=claims.notes)
    if overrides:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in overrides)
        raise InputError(f"target {target!r} declares its capabilities: leave out {options}")
    if not callable(found):
        raise InputError(f"target {target!r} is not callable")
    name = getattr(found, "name", target)
    if not isinstance(name, str):
        raise InputError(f"target {target!r}: its name is {type(name).__name__}, and should be a string")
    backward = getattr(found, "backward", None)
    if backward is not None and not callable(backward):
        raise InputError(f"target {target!r}: its backward is {type(backward).__name__}, and should be a method")
    return Kernel(target, name, found, declared, backward=backward)


def load_form_target(target: str) -> Any:
    """Return what is held to the vectors of a form: a function or a class of a module. Raises InputError, also for a
    backend and a CUDA file, which are kernels."""
    if target in backend_names() or target.rpartition(":")[0].endswith(".cu"):
        raise InputError(f"target {target!r} is a kernel, for `attnspec validate`: use {IN_PYTHON}")
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise InputError(f"target {target!r} has no attribute: use {IN_PYTHON}")
    return load_attribute(target, classes=True)


def load_attribute(target: str, classes: bool = False) -> Any:
    """Import a target's module and return its attribute. classes: whether it may be a class. Raises InputError."""
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        known = backend_names()
        backend = f"is no backend ({', '.join(known)}) and has no attribute"
        raise InputError(f"target {target!r} {backend}: use {FORMS}{did_you_mean(target, known)}")
    module = _from_file(place) if place.endswith(".py") else _from_name(place, IN_PYTHON if classes else FORMS)
    try:
        found: Any = attrgetter(attribute)(module)
    except AttributeError:
        meant = did_you_mean(attribute, dir(module))
        raise InputError(f"target {target!r}: {place} has no attribute {attribute!r}{meant}") from None
    except (Exception, SystemExit) as error:  # a module that loads its attributes late
        raise InputError(_import_failed(place, error)) from None
    if not callable(found):
        raise InputError(f"target {target!r}: {attribute} is not callable, but {type(found).__name__}")
    if isinstance(found, type) and not classes:
        raise InputError(f"target {target!r}: {attribute} is a class: name an instance of it, or a function")
    return found


def _from_file(place: str) -> Any:
    path = Path(place).resolve()
    try:
        exists = path.is_file()
    except OSError as error:
        raise InputError(f"target file {place[:200]!r} cannot be read: {error.strerror}") from None
    if not exists:
        raise InputError(f"target file {place!r} does not exist (looked in {Path.cwd()})")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python file.py` does, so that the file can import its neighbours
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_target"  # nothing in use is replaced
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"target file {place!r} cannot be imported")
    loader, module = spec.loader, importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(_import_failed(place, error)) from None
    return module


def _from_name(place: str, right: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):  # an import of the module's own
            raise InputError(_import_failed(place, error)) from None
        raise InputError(f"target module {place!r} does not exist: use {right}") from None
    except (Exception, SystemExit) as error:
        raise InputError(_import_failed(place, error)) from None


def _import_failed(place: str, error: BaseException) -> str:
    return f"target {place!r} raised on import: {in_one_line(error)}"


def check_device(device: str, kernel: Kernel) -> None:
    """Raise InputError for a device that torch does not know, that is not here, or that the backend does not
    declare."""
    try:
        kind = torch.empty(1, device=device).device.type
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used here: {in_one_line(error)}") from None
    if kind == "meta":
        raise InputError(f"device {device!r} cannot be used here: its tensors hold no numbers")
    if not kernel.inferred and kind not in kernel.capabilities.devices:
        raise InputError(
            f"device {device!r} is not declared by {kernel.name}: use {', '.join(kernel.capabilities.devices)}"
        )
