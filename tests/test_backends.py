"""The backends that ship: right within a few roundings, and as able as they declare."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnspec.golden.inputs import make_call
from attnspec.implementations import grouped, reference_float64, tiled, torch_eager, torch_sdpa
from attnspec.reference.attention import answer
from attnspec.reference.backward import gradients as reference_gradients
from attnspec.spec.call import Result
from attnspec.spec.capabilities import FEATURES
from attnspec.spec.dtypes import FORMATS, format_named
from attnspec.spec.errors import InputError
from attnspec.spec.problem import Problem

BACKENDS: dict[str, Any] = {
    backend.name: backend
    for backend in (
        torch_eager.backend,
        grouped.backend,
        reference_float64.backend,
        tiled.backend,
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
    "/lengths=ragged",
    "/lengths=zero/causal=lower_right",
    "/lengths=ragged/mask=float.b11k.bias/causal",
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
    "key_lengths": "b=3/q=4/k=6/d=8/lengths=ragged",
    "backward": "q=4/k=6/d=8/grad=output",
    "dropout_p": "q=4/k=6/d=8/dropout=0.5",
    "window_size": "q=6/k=6/d=8/window=2.1",
    "alibi_slopes": "hq=2/q=6/k=6/d=8/alibi",
    "grad_alibi_slopes": "hq=2/q=6/k=6/d=8/alibi=symmetric.learned/grad",
    "sinks": "hq=2/q=4/k=6/d=8/sinks",
    "softcap": "q=4/k=6/d=8/softcap=2",
}
GRADIENTS = (  # each shape with an option of the forward pass that the backward pass must keep to
    "q=17/k=33/d=16/causal",
    "b=2/q=9/k=9/d=3/hq=6/hkv=2/mask=float.bhqk.bias",
    "b=3/bkv=1/q=7/k=12/d=8/hq=4/hkv=2/mask=bool.qk.empty_rows/scale=-0.4",
    "b=3/q=9/k=20/d=8/dv=24/lengths=zero/causal=lower_right",
)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(backend: Any, problem: Problem, return_lse: bool = False) -> Result:
    """Return what a backend says of a problem."""
    call = make_call(problem)
    options = call.options() | ({"return_lse": True} if return_lse else {})
    returned = backend(call.query, call.key, call.value, **options)
    return Result(*returned) if return_lse else Result(returned)


def off_by(backend: Any, problem: Problem) -> float:
    """Return the largest error of a backend's output, in unit roundoffs of sum_j p_ij |v_j|; checks shape and dtype."""
    call = make_call(problem)
    exact, output = answer(call, backend.capabilities.causal_alignment), run(backend, problem).output
    assert exact.weights is not None
    assert output.dtype == call.query.dtype
    assert output.shape == exact.output.shape
    group = problem.q_heads // problem.kv_heads
    mass = exact.weights @ call.value.double().abs().repeat_interleave(group, dim=1)
    error = (output.double() - exact.output).abs()
    assert not error.isnan().any()
    assert (error[mass == 0] == 0).all()  # fully masked rows
    return float((error / mass.clamp_min(1e-300)).max()) / format_named(problem.dtype).unit_roundoff


def gradients_of(backend: Any, problem: Problem) -> tuple[torch.Tensor, ...]:
    """Return the gradients that autograd gives of what has one."""
    call = make_call(problem)
    leaves = {name: x.detach().requires_grad_() for name, x in call.differentiable().items()}
    given = call.but(**leaves)
    output = backend(given.query, given.key, given.value, **given.options())
    return torch.autograd.grad(output, list(leaves.values()), call.grad_output)


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
        exact = answer(make_call(problem), backend.capabilities.causal_alignment).lse
        lse = run(backend, problem, return_lse=True).lse
        assert lse is not None
        assert exact is not None
        assert lse.dtype == (torch.float64 if dtype == "float64" else torch.float32)
        empty = exact == -torch.inf
        assert torch.equal(lse == -torch.inf, empty), problem
        assert ((lse - exact).abs()[~empty] <= 16 * unit * (1 + exact.abs()[~empty])).all(), problem


@pytest.mark.parametrize("name", BACKENDS)
def test_gradients_agree_with_the_reference(name: str) -> None:
    tested = 0
    for problem in (Problem.parse(f"{text}/dtype=float64/grad=output") for text in GRADIENTS):
        if BACKENDS[name].capabilities.lacks(problem) is None:
            tested += 1
            exact = reference_gradients(make_call(problem), BACKENDS[name].capabilities.causal_alignment)
            for found, expected in zip(gradients_of(BACKENDS[name], problem), exact, strict=False):
                torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    assert tested >= 1


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_declared_runs_and_what_is_not_raises(name: str, feature: str) -> None:
    backend, problem = BACKENDS[name], Problem.parse(NEEDS[feature])
    if feature == "backward":
        assert feature in backend.capabilities.features
    if feature in ("backward", "grad_alibi_slopes") and feature in backend.capabilities.features:
        assert all(gradient.isfinite().all() for gradient in gradients_of(backend, problem))
    elif feature in backend.capabilities.features:
        output = run(backend, problem, feature == "return_lse").output
        assert output.shape == (problem.batch, problem.q_heads, problem.q_len, problem.value_dim)
    else:
        with pytest.raises((RuntimeError, IndexError, TypeError)):
            run(backend, problem, feature == "return_lse")


@pytest.mark.parametrize("name", BACKENDS)
def test_mask_with_causal_runs_unless_it_is_refused(name: str) -> None:
    backend, problem = BACKENDS[name], Problem.parse("q=6/k=6/d=8/mask=float.qk.random/causal")
    if ("attn_mask", "is_causal") in backend.capabilities.refuses:
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


@pytest.mark.parametrize("name", ["torch_eager", "grouped", "tiled", "reference"])
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


@pytest.mark.parametrize("name", ["torch_eager", "grouped", "tiled"])
@pytest.mark.parametrize(
    "mask", [torch.ones(3, 4), torch.ones(2, 1, 3, 5), torch.ones(3, 5).int(), torch.ones(3, 5).double()]
)
def test_a_mask_that_does_not_fit_is_refused(name: str, mask: torch.Tensor) -> None:
    query = torch.zeros(1, 1, 3, 8)
    with pytest.raises(InputError, match="attn_mask"):
        BACKENDS[name](query, torch.zeros(1, 1, 5, 8), torch.zeros(1, 1, 5, 8), attn_mask=mask)


@pytest.mark.parametrize("name", ["torch_eager", "grouped", "tiled"])
def test_hidden_values_and_overflowing_hidden_scores_change_no_bit(name: str) -> None:
    call = make_call(Problem.parse("hq=4/hkv=2/q=3/k=9/d=8/dtype=float16/mask=bool.b11k.leading"))
    key, value = call.key.clone(), call.value.clone()
    key[:, :, :5], value[:, :, :5] = 6e4, -6e4
    plain = BACKENDS[name](call.query, call.key, call.value, **call.options())
    assert torch.equal(BACKENDS[name](call.query, key, value, **call.options()), plain)


@pytest.mark.parametrize("name", ["torch_eager", "grouped", "tiled", "reference"])
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
