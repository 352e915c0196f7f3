"""The registry: how backends are found by name, and what is said where one cannot be loaded."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from attnspec.implementations import registry, torch_sdpa
from attnspec.implementations.registry import backend_names, expectations_path, load_backend, status
from attnspec.spec.capabilities import Backend, Capabilities
from attnspec.spec.errors import InputError, Unavailable

ROOT = Path(__file__).parents[1]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces the registered backends by (name, value) pairs."""

    def replace(*pairs: tuple[str, str]) -> None:
        entries = metadata.EntryPoints(metadata.EntryPoint(name, value, registry.GROUP) for name, value in pairs)
        monkeypatch.setattr(metadata, "entry_points", entries.select)

    return replace


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return an empty module that entry points can name as `someones_kernels`."""
    made = ModuleType("someones_kernels")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


class Tiny:
    """The least that is a backend."""

    name = "tiny"
    capabilities = Capabilities()

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        return query


def test_names_are_sorted_and_nothing_is_imported(register: Callable[..., None]) -> None:
    register(("b", "no_such_module:backend"), ("a", "no_such_module:backend"))
    assert backend_names() == ("a", "b")


def test_importing_the_registry_does_not_import_torch() -> None:
    code = (
        "import sys; from attnspec.implementations import registry; registry.backend_names();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("value", [Tiny(), lambda: Tiny(), Tiny], ids=["object", "function", "class"])
def test_an_object_or_what_makes_one_is_loaded(value: Any, register: Callable[..., None], module: ModuleType) -> None:
    module.backend = value  # type: ignore[attr-defined]
    register(("tiny", "someones_kernels:backend"))
    assert isinstance(load_backend("tiny"), Tiny)
    assert status("tiny") == "available"


def test_an_unknown_name_lists_the_known_ones(register: Callable[..., None]) -> None:
    register(("a", "m:x"), ("b", "m:x"))
    for ask in (load_backend, status):
        with pytest.raises(InputError, match=r"^unknown backend 'c': use one of a, b$"):
            ask("c")


def test_nothing_registered_is_said_so(register: Callable[..., None]) -> None:
    register()
    with pytest.raises(InputError, match="none is registered"):
        load_backend("a")


def test_a_missing_module_is_unavailable_with_the_reason(register: Callable[..., None]) -> None:
    register(("a", "no_such_module:backend"))
    with pytest.raises(Unavailable, match="No module named 'no_such_module'"):
        load_backend("a")
    assert status("a").startswith("unavailable: no_such_module:backend raised ModuleNotFoundError")


def test_a_missing_attribute_is_unavailable(register: Callable[..., None], module: ModuleType) -> None:
    register(("a", "someones_kernels:nothing"))
    with pytest.raises(Unavailable, match="AttributeError"):
        load_backend("a")


@pytest.mark.parametrize("error", [OSError("libcuda.so\nnot found"), SystemExit("bye"), ZeroDivisionError()])
def test_any_exception_is_unavailable_in_one_line(
    error: BaseException, register: Callable[..., None], module: ModuleType
) -> None:
    def backend() -> Backend:
        raise error

    module.backend = backend  # type: ignore[attr-defined]
    register(("a", "someones_kernels:backend"))
    with pytest.raises(Unavailable) as caught:
        load_backend("a")
    assert type(error).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_backend_that_says_unavailable_is_quoted(register: Callable[..., None], module: ModuleType) -> None:
    def backend() -> Backend:
        raise Unavailable("needs\nTriton")

    module.backend = backend  # type: ignore[attr-defined]
    register(("a", "someones_kernels:backend"))
    assert status("a") == "unavailable: needs Triton"


@pytest.mark.parametrize("value", [42, len, lambda: 42, lambda: None])
def test_an_object_that_is_no_backend_is_refused(value: Any, register: Callable[..., None], module: ModuleType) -> None:
    module.backend = value  # type: ignore[attr-defined]
    register(("a", "someones_kernels:backend"))
    with pytest.raises((InputError, Unavailable), match=r"someones_kernels:backend") as caught:
        load_backend("a")
    assert "\n" not in str(caught.value)
    assert status("a").startswith("unavailable: ")


def test_capabilities_of_another_type_are_no_backend(register: Callable[..., None], module: ModuleType) -> None:
    class Loose(Tiny):
        capabilities = {"dtypes": ["float32"]}  # type: ignore[assignment] # noqa: RUF012

    module.backend = Loose()  # type: ignore[attr-defined]
    register(("a", "someones_kernels:backend"))
    with pytest.raises((InputError, Unavailable)):
        load_backend("a")


def test_two_distributions_with_one_name_are_refused(register: Callable[..., None]) -> None:
    register(("a", "one:backend"), ("a", "two:backend"))
    assert backend_names() == ("a",)
    with pytest.raises(InputError, match=r"registered by .*one:backend.* and .*two:backend.*uninstall all but one"):
        load_backend("a")
    assert status("a").startswith("unavailable: backend 'a' is registered by")


def test_expectations_are_found_by_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_sdpa.flash.json").touch()
    monkeypatch.setattr(registry, "EXPECTATIONS", tmp_path)
    assert expectations_path("torch_sdpa.flash") == tmp_path / "torch_sdpa.flash.json"
    assert expectations_path("torch_sdpa") is None
    assert expectations_path("../torch_sdpa.flash") is None


def test_every_backend_of_this_project_loads_or_says_why_not(register: Callable[..., None]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    register(*project["entry-points"][registry.GROUP].items())
    for name in backend_names():
        if status(name) == "available":
            assert load_backend(name).name == name
        else:
            assert status(name).startswith("unavailable: needs ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize("make", [torch_sdpa.efficient, torch_sdpa.cudnn])
def test_cuda_kernels_need_a_gpu(make: Callable[[], Any]) -> None:
    with pytest.raises(Unavailable, match=r"^needs a CUDA GPU$"):
        make()


def test_a_backend_gives_its_own_build_under_a_sanitizer() -> None:
    class Compiled:
        def sanitized(self, kind: str) -> str:
            return f"under {kind}"

    assert registry.sanitized("mine", Compiled(), "thread") == "under thread"
    with pytest.raises(InputError, match=r"target 'mine' has no sanitizer: use a CUDA file"):
        registry.sanitized("mine", object(), "thread")
