"""The backends that ship, and the registry that finds them."""

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
from torch.utils._python_dispatch import TorchDispatchMode

from attnspec.golden.inputs import make_call
from attnspec.implementations import grouped, reference_float64, registry, torch_eager, torch_sdpa
from attnspec.implementations.registry import backend_names, expectations_path, load_backend, status
from attnspec.reference.attention import answer
from attnspec.spec.call import Result
from attnspec.spec.capabilities import FEATURES, Backend, Capabilities
from attnspec.spec.dtypes import FORMATS, format_named
from attnspec.spec.errors import InputError, Unavailable
from attnspec.spec.problem import Problem

ROOT = Path(__file__).parents[1]
BACKENDS: dict[str, Any] = {
    backend.name: backend
    for backend in (
        torch_eager.backend,
        grouped.backend,
        reference_float64.backend,
        torch_sdpa.math(),
        torch_sdpa.flash(),
    )
}
SHAPES = (
    "q=17/k=33/d=16",
    "q=1/k=70/d=64",
    "q=5/k=3/d=8",
    "b=2/q=9/k=9/d=3/hq=6/hkv=2",
    "q=4/k=40/d=65/hq=5/hkv=1",
    "q=9/k=20/d=8/dv=24",
    "b=3/bkv=1/q=7/k=12/d=8/hq=4/hkv=2",
)
OPTIONS = (
    "",
    "/mask=bool.bhqk.random",
    "/mask=bool.qk.empty_rows",
    "/mask=float.k.bias",
    "/mask=float.11qk.empty_rows",
    "/mask=bool.b11k.padding/causal",
    "/mask=float.b11k.leading/causal=lower_right",
    "/mask=bool.hqk.empty_head",
    "/causal",
    "/causal=lower_right",
    "/scale=0",
    "/scale=-0.4",
)
PROBLEMS = [f"{shape}/{option}".replace("//", "/").strip("/") for shape in SHAPES for option in OPTIONS]
ROUNDINGS = {"fused": 2.0, "eager": 12.0}  # unit roundoffs of sum_j p_ij |v_j| that 16-bit outputs may be off
ROUNDINGS_WIDE = 100.0  # the same for float32 and float64, where scores of about 10 carry their own roundings along

NEEDS = {  # a problem that needs the feature and as little else as can be
    "attn_mask.bool": "q=4/k=6/d=8/mask=bool.qk.random",
    "attn_mask.float": "q=4/k=6/d=8/mask=float.qk.random",
    "attn_mask.rank1": "q=4/k=6/d=8/mask=bool.k.random",
    "attn_mask.rank2": "q=4/k=6/d=8/mask=bool.q1.empty_rows",
    "attn_mask.rank3": "hq=2/q=4/k=6/d=8/mask=bool.h1k.random",
    "attn_mask.rank4": "b=2/hq=2/q=4/k=6/d=8/mask=bool.b11k.padding",
    "is_causal": "q=6/k=6/d=8/causal",
    "scale": "q=4/k=6/d=8/scale=0.3",
    "enable_gqa": "hq=6/hkv=2/q=4/k=6/d=8",
    "return_lse": "q=4/k=6/d=8",
    "value_dim": "q=4/k=6/d=8/dv=5",
    "kv_broadcast": "b=3/bkv=1/q=4/k=6/d=8",
    "empty": "q=4/k=0/d=8",
    "dropout_p": "q=4/k=6/d=8/dropout=0.5",
}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


# The registry


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


# The backends


def run(backend: Any, problem: Problem, return_lse: bool = False) -> Result:
    """Return what a backend says of a problem."""
    call = make_call(problem)
    options = call.options() | ({"return_lse": True} if return_lse else {})
    returned = backend(call.query, call.key, call.value, **options)
    return Result(*returned) if return_lse else Result(returned)


def off_by(backend: Any, problem: Problem) -> float:
    """Return the largest error of a backend's output, in unit roundoffs of sum_j p_ij |v_j|; checks shape and dtype."""
    call, causal = make_call(problem), problem.causal or "upper_left"
    exact, output = answer(call, causal), run(backend, problem).output
    assert exact.weights is not None
    assert output.dtype == call.query.dtype
    assert output.shape == exact.output.shape
    group = problem.q_heads // problem.kv_heads
    mass = exact.weights @ call.value.double().abs().repeat_interleave(group, dim=1)
    error = (output.double() - exact.output).abs()
    assert not error.isnan().any()
    assert (error[mass == 0] == 0).all()  # fully masked rows
    return float((error / mass.clamp_min(1e-300)).max()) / format_named(problem.dtype).unit_roundoff


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", BACKENDS)
def test_output_agrees_with_the_reference(name: str, dtype: str) -> None:
    backend = BACKENDS[name]
    wide = dtype in ("float32", "float64")
    limit = ROUNDINGS_WIDE if wide else ROUNDINGS[backend.capabilities.accuracy]
    problems = [Problem.parse(text).but(dtype=dtype) for text in PROBLEMS]
    tested = [problem for problem in problems if backend.capabilities.lacks(problem) is None]
    assert len(tested) >= len(SHAPES) * len(OPTIONS) / 4
    off = {str(problem): off_by(backend, problem) for problem in tested}
    assert {text: error for text, error in off.items() if error > limit} == {}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", [name for name in BACKENDS if "return_lse" in BACKENDS[name].capabilities.features])
def test_lse_agrees_with_the_reference(name: str, dtype: str) -> None:
    backend = BACKENDS[name]
    eager = backend.capabilities.accuracy == "eager" and dtype not in ("float32", "float64")
    unit = format_named(dtype if eager or dtype == "float64" else "float32").unit_roundoff
    for problem in (Problem.parse(text).but(dtype=dtype) for text in PROBLEMS):
        if backend.capabilities.lacks(problem, return_lse=True):
            continue
        exact = answer(make_call(problem), problem.causal or "upper_left").lse
        lse = run(backend, problem, return_lse=True).lse
        assert lse is not None
        assert exact is not None
        assert lse.dtype == (torch.float64 if dtype == "float64" else torch.float32)
        empty = exact == -torch.inf
        assert torch.equal(lse == -torch.inf, empty), problem
        assert ((lse - exact).abs()[~empty] <= 16 * unit * (1 + exact.abs()[~empty])).all(), problem


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_declared_runs_and_what_is_not_raises(name: str, feature: str) -> None:
    backend, problem = BACKENDS[name], Problem.parse(NEEDS[feature])
    if feature in backend.capabilities.features:
        output = run(backend, problem, feature == "return_lse").output
        assert output.shape == (problem.batch, problem.q_heads, problem.q_len, problem.value_dim)
    else:
        with pytest.raises((RuntimeError, IndexError, TypeError)):
            run(backend, problem, feature == "return_lse")


@pytest.mark.parametrize("name", BACKENDS)
def test_mask_with_causal_runs_unless_it_is_refused(name: str) -> None:
    backend, problem = BACKENDS[name], Problem.parse("q=6/k=6/d=8/mask=float.qk.random/causal")
    if backend.capabilities.refuses:
        with pytest.raises(RuntimeError, match="is_causal"):
            run(backend, problem)
    else:
        assert off_by(backend, problem) < ROUNDINGS_WIDE


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", BACKENDS)
def test_declared_dtypes_and_head_dims_run(name: str, dtype: str) -> None:
    low, high = BACKENDS[name].capabilities.head_dims
    assert dtype in BACKENDS[name].capabilities.dtypes
    for head_dim in (low, high):
        assert off_by(BACKENDS[name], Problem(3, 20, head_dim, dtype=dtype)) < ROUNDINGS_WIDE


@pytest.mark.parametrize("name", BACKENDS)
def test_zero_lengths_give_zero_or_nothing(name: str) -> None:
    no_keys = Problem.parse(NEEDS["empty"])
    assert (run(BACKENDS[name], no_keys).output == 0).all()
    for changes in ({"q_len": 0}, {"q_len": 0, "k_len": 5}, {"batch": 0, "kv_batch": 0, "k_len": 5}):
        problem = no_keys.but(**changes)
        assert run(BACKENDS[name], problem).output.shape == (problem.batch, 1, problem.q_len, 8)


@pytest.mark.parametrize("name", BACKENDS)
def test_results_repeat_bit_for_bit(name: str) -> None:
    problem = Problem.parse("b=2/hq=4/hkv=2/q=33/k=130/d=65")
    assert torch.equal(run(BACKENDS[name], problem).output, run(BACKENDS[name], problem).output)


@pytest.mark.xfail(strict=True, reason="torch 2.13, CPU flash: the causal -inf is multiplied by the scale")
@pytest.mark.parametrize("scale", [0.0, -0.4])
def test_flash_takes_a_causal_call_of_any_scale(scale: float) -> None:
    assert off_by(BACKENDS["torch_sdpa.flash"], Problem(4, 4, 8, causal="upper_left", scale=scale)) < ROUNDINGS_WIDE


@pytest.mark.parametrize("name", ["torch_eager", "grouped", "reference"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 2, 3, 8), (3, 2, 5, 8), (3, 2, 5, 8)),  # more key than query batches
        ((1, 4, 3, 8), (1, 1, 5, 8), (1, 1, 5, 8)),  # grouped without enable_gqa
        ((1, 2, 3, 8), (1, 2, 5, 8), (1, 1, 5, 8)),  # value heads differ
        ((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 4, 8)),  # value length differs
        ((1, 2, 3, 8), (1, 2, 5, 4), (1, 2, 5, 8)),  # head_dim differs
        ((2, 3, 8), (2, 5, 8), (2, 5, 8)),  # three dimensions
    ],
)
def test_tensors_that_do_not_fit_are_refused(name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(InputError):
        BACKENDS[name](*(torch.zeros(shape) for shape in shapes))


@pytest.mark.parametrize("name", ["torch_eager", "grouped"])
@pytest.mark.parametrize(
    "mask", [torch.ones(3, 4), torch.ones(2, 1, 3, 5), torch.ones(3, 5).int(), torch.ones(3, 5).double()]
)
def test_a_mask_that_does_not_fit_is_refused(name: str, mask: torch.Tensor) -> None:
    query = torch.zeros(1, 1, 3, 8)
    with pytest.raises(InputError, match="attn_mask"):
        BACKENDS[name](query, torch.zeros(1, 1, 5, 8), torch.zeros(1, 1, 5, 8), attn_mask=mask)


@pytest.mark.parametrize("name", ["torch_eager", "grouped"])
def test_hidden_values_and_overflowing_hidden_scores_change_no_bit(name: str) -> None:
    call = make_call(Problem.parse("hq=4/hkv=2/q=3/k=9/d=8/dtype=float16/mask=bool.b11k.leading"))
    key, value = call.key.clone(), call.value.clone()
    key[:, :, :5], value[:, :, :5] = 6e4, -6e4
    plain = BACKENDS[name](call.query, call.key, call.value, **call.options())
    assert torch.equal(BACKENDS[name](call.query, key, value, **call.options()), plain)


@pytest.mark.parametrize("name", ["torch_eager", "grouped", "reference"])
def test_gradients_of_empty_rows_are_zero_and_finite(name: str) -> None:
    call = make_call(Problem.parse("hq=4/hkv=2/q=6/k=9/d=8/dtype=float64/mask=bool.qk.empty_rows"))
    tensors = [x.requires_grad_() for x in (call.query, call.key, call.value)]
    BACKENDS[name](*tensors, **call.options()).sum().backward()
    grads = [x.grad for x in tensors]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)
    assert call.attn_mask is not None
    assert grads[0] is not None
    empty = ~call.attn_mask.any(-1)
    assert empty.any()
    assert (grads[0][:, :, empty] == 0).all()


class LargestResult(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record the most elements that any operation has allocated; views do not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
        return result


@pytest.mark.parametrize("extra", ["", "/mask=float.11qk.random/causal", "/dtype=bfloat16", "/mask=bool.k.random"])
@pytest.mark.parametrize("heads", ["hq=32/hkv=2", "hq=16/hkv=1", "b=4/bkv=1/hq=8/hkv=2"])
def test_grouped_never_holds_expanded_keys_or_values(heads: str, extra: str) -> None:
    problem = Problem.parse(f"{heads}/q=1/k=64/d=32{extra}")
    call = make_call(problem)
    allowed = max(call.key.numel(), problem.batch * problem.q_heads * problem.k_len)  # the keys, the scores
    expanded = problem.batch * problem.q_heads * problem.k_len * problem.head_dim
    with LargestResult() as seen:
        BACKENDS["grouped"](call.query, call.key, call.value, **call.options())
    assert seen.elements <= allowed
    with LargestResult() as seen:
        BACKENDS["torch_eager"](call.query, call.key, call.value, **call.options())
    assert seen.elements >= expanded / problem.batch * problem.kv_batch  # the count would have shown it
