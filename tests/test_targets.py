"""From what the user wrote to a kernel, or to one line that says what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from attnspec.conformance.targets import load_form_target, resolve
from attnspec.implementations.registry import backend_names
from attnspec.spec.call import Call
from attnspec.spec.errors import InputError

File = Callable[..., Path]
HONEST = "from torch.nn.functional import scaled_dot_product_attention as attention\n"
BACKEND = """
from torch.nn.functional import scaled_dot_product_attention
from attnspec.spec.capabilities import Capabilities

class Backend:
    name = "mine"
    capabilities = Capabilities(features=("is_causal",), devices=("cpu",))

    def __call__(self, query, key, value, **options):
        return scaled_dot_product_attention(query, key, value, **options)

backend = Backend()
"""


@pytest.fixture(autouse=True)
def _restored_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Work in an empty folder, and forget what was imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("mine", "neighbour", "package"):
            del sys.modules[name]
    sys.modules.update(before)


def told(target: str, **settings: str) -> str:
    """Resolve a bad target; return the line that it gives."""
    with pytest.raises(InputError) as caught:
        resolve(target, **settings)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 700
    return line


def test_a_file_names_a_kernel(kernel_file: File) -> None:
    kernel = resolve(f"{kernel_file(HONEST)}:attention")
    assert kernel.inferred
    assert kernel(Call(*(torch.ones(1, 1, 1, 1) for _ in range(3)))).output.item() == 1


def test_a_relative_file_names_a_kernel(kernel_file: File) -> None:
    kernel_file(HONEST)
    assert resolve("mine.py:attention").target == "mine.py:attention"


def test_a_module_of_the_folder_names_a_kernel(kernel_file: File) -> None:
    kernel_file(HONEST)
    assert resolve("mine:attention").inferred


def test_a_module_of_a_package_names_a_kernel(kernel_file: File, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    kernel_file(HONEST, "package/module.py")
    assert resolve("package.module:attention").inferred


def test_an_attribute_of_an_attribute_names_a_kernel(kernel_file: File) -> None:
    kernel_file("class Flash:\n    @staticmethod\n    def apply(q, k, v):\n        return v\n")
    assert resolve("mine.py:Flash.apply").name == "apply"


def test_a_file_can_import_its_neighbours(kernel_file: File) -> None:
    kernel_file(HONEST, "neighbour.py")
    kernel_file("from neighbour import attention\n")
    assert resolve("mine.py:attention").inferred


def test_a_folder_whose_name_holds_a_colon_is_read(kernel_file: File, tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    assert resolve(f"{kernel_file(HONEST, 'a:b/mine.py')}:attention").inferred


@pytest.mark.parametrize("name", ["json.py", "golden.py", "torch.py", "conformance.py"])
def test_a_file_may_bear_the_name_of_a_module_that_is_in_use(kernel_file: File, name: str) -> None:
    in_use = sys.modules.get(name.removesuffix(".py"))
    kernel_file("def attention(q, k, v):\n    return v\n", name)
    assert resolve(f"{name}:attention").inferred
    assert in_use is None or sys.modules[name.removesuffix(".py")] is in_use


def test_dataclasses_work_in_a_file(kernel_file: File) -> None:
    kernel_file(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Kernel:\n"
        "    block: int = 64\n    def __call__(self, q, k, v):\n        return v\n\nattention = Kernel()\n"
    )
    assert resolve("mine.py:attention").name == "Kernel"


def test_a_backend_object_keeps_its_name_and_declaration(kernel_file: File) -> None:
    kernel_file(BACKEND)
    kernel = resolve("mine.py:backend")
    assert (kernel.name, kernel.inferred, kernel.capabilities.features) == ("mine", False, ("is_causal",))


@pytest.mark.parametrize("name", ["torch_eager", "grouped", "torch_sdpa.math"])
def test_a_registered_backend_is_found_by_its_name(name: str) -> None:
    assert not resolve(name).inferred


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('first\\nsecond')", "raised on import: ValueError: first second"),
        ("import no_such_package", "raised on import: ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise SystemExit(3)", "raised on import: SystemExit: 3"),
        ("import sys\nsys.exit()", "raised on import: SystemExit"),
        ("def attention(:", "raised on import: SyntaxError"),
        ("raise ValueError('x' * 10_000)", "raised on import: ValueError"),
        ("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd", "raised on import: Odd"),
        ("", "has no attribute 'attention'"),
        ("def __getattr__(name):\n    raise ImportError('triton is missing')", "ImportError: triton is missing"),
        ("attention = 3", "attention is not callable, but int"),
        ("attention = None", "attention is not callable, but NoneType"),
        ("def attention(x): ...", "takes x: it must take query, key and value"),
        ("def attention(q, k, v, block): ...", "needs a parameter 'block'"),
        ("attention = type", "attention is a class"),
        ("class attention:\n    def __call__(self, q, k, v): ...", "attention is a class: name an instance of it"),
        ("class attention:\n    def __init__(self, q, k, v): ...", "attention is a class: name an instance of it"),
        (BACKEND + "attention = Backend", "attention is a class: name an instance of it"),
        ("def attention(q, k, v): ...\nattention.capabilities = {}", "its capabilities are no"),
        (BACKEND + "attention = backend\nBackend.name = None", "its name is NoneType"),
    ],
)
@pytest.mark.parametrize("form", ["mine.py:attention", "mine:attention"])
def test_a_module_without_a_kernel_is_one_line(kernel_file: File, form: str, text: str, said: str) -> None:
    kernel_file(text)
    line = told(form)
    assert line.startswith("target ")
    assert "mine" in line
    assert said in line


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing.py:attention", "target file 'missing.py' does not exist (looked in "),
        (".py:attention", "target file '.py' does not exist"),
        ("missing:attention", "target module 'missing' does not exist: use a backend's name"),
        ("missing.module:attention", "target module 'missing.module' does not exist"),
        ("torch.missing:attention", "target module 'torch.missing' does not exist"),
        ("torch.nn.functional:missing", "has no attribute 'missing'"),
        ("torch.nn.functional:softmax.missing", "has no attribute 'softmax.missing'"),
        ("..:attention", "'..'"),
        (".relative:attention", "'.relative'"),
        ("a b:attention", "target module 'a b' does not exist"),
        ("torch.nn.functional:", "has no attribute: use a backend's name, package.module:attr"),
        (":attention", "has no attribute: use"),
        (":", "has no attribute: use"),
        ("", "target '' is no backend"),
        ("nonsense", "target 'nonsense' is no backend ("),
        ("kernel.py", "target 'kernel.py' is no backend"),
        ("torch", "target 'torch' is no backend"),
        ("torch_eagre", "; did you mean 'torch_eager'?"),
        ("torch.nn.functional:scaled_dot_product_atention", "; did you mean 'scaled_dot_product_attention'?"),
        ("torch.nn.functional:.", "has no attribute '.'"),
        ("x" * 300 + ".py:attention", "cannot be read: File name too long"),
    ],
)
def test_a_target_that_is_nowhere_is_one_line(target: str, said: str) -> None:
    assert said in told(target)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("torch_eager", "target 'torch_eager' is a kernel, for `attnspec validate`: use package.module:attr or path"),
        (
            "mine.cu:attention",
            "target 'mine.cu:attention' is a kernel, for `attnspec validate`: use package.module:attr",
        ),
        ("mine.py", "target 'mine.py' has no attribute: use package.module:attr or path/to/file.py:attr"),
        ("", "target '' has no attribute"),
        (":merge", "target ':merge' has no attribute"),
        ("mine.py:", "target 'mine.py:' has no attribute: use package.module:attr or path/to/file.py:attr$"),
        ("no_such:merge", "target module 'no_such' does not exist: use package.module:attr or path/to/file.py:attr$"),
    ],
)
def test_a_kernel_is_not_held_to_a_form(target: str, said: str) -> None:
    with pytest.raises(InputError, match="^" + said):
        load_form_target(target)


def test_the_backends_are_named_where_a_target_is_none() -> None:
    assert ", ".join(backend_names()) in told("nonsense")


def test_a_missing_import_of_a_package_is_not_taken_for_the_target(kernel_file: File, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    kernel_file("import no_such_package", "package/__init__.py")
    kernel_file(HONEST, "package/module.py")
    assert "ModuleNotFoundError: No module named 'no_such_package'" in told("package.module:attention")


def test_a_package_that_exits_is_one_line(kernel_file: File, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    kernel_file("raise SystemExit(1)", "package/__init__.py")
    kernel_file(HONEST, "package/module.py")
    assert "raised on import: SystemExit: 1" in told("package.module:attention")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accuracy": "exact"}, "use one of fused, eager"),
        ({"causal_alignment": "middle"}, "use one of upper_left, lower_right"),
        ({"device": "nonsense"}, "device 'nonsense' cannot be used here"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
        ({"device": "meta"}, "device 'meta' cannot be used here"),
        ({"device": "cpu:x"}, "device 'cpu:x' cannot be used here"),
    ],
)
def test_a_wrong_setting_is_one_line(kernel_file: File, settings: dict[str, str], said: str) -> None:
    assert said in told(f"{kernel_file(HONEST)}:attention", **settings)


@pytest.mark.parametrize("setting", ["accuracy", "causal_alignment"])
def test_a_declaration_is_not_overruled(kernel_file: File, setting: str) -> None:
    value = {"accuracy": "eager", "causal_alignment": "lower_right"}[setting]
    assert "declares its capabilities: leave out" in told(f"{kernel_file(BACKEND)}:backend", **{setting: value})


def test_a_backend_runs_on_the_devices_that_it_declares(kernel_file: File) -> None:
    path = kernel_file(BACKEND.replace('devices=("cpu",)', 'devices=("cuda",)'))
    assert "device 'cpu' is not declared by mine: use cuda" in told(f"{path}:backend", device="cpu")


def test_a_failed_import_leaves_no_module_behind(kernel_file: File) -> None:
    kernel_file("raise ValueError")
    told("mine.py:attention")
    assert "mine" not in sys.modules
