"""The backend cuda_flash, emulated: each option within the budget, gradients, strides, splits, schedules, bad input."""

from __future__ import annotations

import pytest
import torch
from test_tiled_backend import gradients, grads_of_results

from attnspec.conformance.budget import error_budget
from attnspec.conformance.environment import hardware
from attnspec.conformance.kernel import Kernel
from attnspec.golden.inputs import make_call
from attnspec.implementations.cuda_emulator import toolkit
from attnspec.implementations.cuda_flash import backend as backends
from attnspec.implementations.cuda_flash.backend import CudaFlash
from attnspec.implementations.cuda_flash.builds import DIMS, SOURCE, TYPES, Build, build_for
from attnspec.implementations.cuda_flash.launcher import Emulated
from attnspec.implementations.cuda_flash.operation import splits_for
from attnspec.reference.attention import answer, attention
from attnspec.spec.errors import InputError, Unavailable
from attnspec.spec.problem import Problem

DTYPES = ("float32", "float16", "bfloat16")
UPPER, LOWER = CudaFlash(), CudaFlash("cuda_flash.lower_right", "lower_right")
PROBLEMS = (
    "q=1/k=1/d=1",
    "q=17/k=33/d=16",
    "q=65/k=33/d=40/causal",
    "q=33/k=70/d=32/causal=lower_right",
    "q=40/k=70/d=32/window=5.2",
    "b=2/q=9/k=40/d=16/window=4.0.lower_right/lengths=ragged",
    "b=2/hq=6/hkv=2/q=9/k=20/d=8/dv=24/mask=bool.b11k.padding",
    "b=3/bkv=1/hq=4/hkv=1/q=7/k=12/d=8/mask=float.hqk.bias/causal",
    "q=12/k=40/d=8/mask=bool.qk.empty_rows/scale=-0.4",
    "b=2/q=3/k=600/d=16/lengths=ragged",
    "q=5/k=40/d=130",
    "q=5/k=40/d=256/dv=100",
    "q=20/k=33/d=8/mask=float.qk.sentinel",
    "q=4/k=0/d=8",
    "q=0/k=4/d=8",
)
DIFFERENTIABLE = tuple(
    text for text in PROBLEMS if not any(word in text for word in ("=0/", "lower_right", "sentinel"))
)


def backend_of(problem: Problem) -> CudaFlash:
    return LOWER if problem.corner == "lower_right" else UPPER


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", PROBLEMS)
def test_answers_stay_within_the_budget(text: str, dtype: str) -> None:
    problem = Problem.parse(f"{text}/dtype={dtype}")
    call = make_call(problem).but(return_lse=True)
    output, lse = backend_of(problem)(call.query, call.key, call.value, **call.options())
    truth, budget = answer(call, problem.corner), error_budget(call, causal_alignment=problem.corner)
    assert truth.lse is not None
    assert (output.dtype, lse.dtype) == (call.query.dtype, torch.float32)
    assert ((output.double() - truth.output).abs() <= budget.output).all()
    empty = truth.lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty)
    assert ((lse.double() - truth.lse).abs() <= budget.lse)[~empty].all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float16", 1e-2), ("bfloat16", 6e-2)])
@pytest.mark.parametrize("text", DIFFERENTIABLE)
def test_gradients_are_those_of_the_reference(text: str, dtype: str, tolerance: float) -> None:
    call = make_call(Problem.parse(f"{text}/dtype={dtype}"))
    grads = grads_of_results(call)
    expected = gradients(attention, call, torch.float64, grads)
    found = gradients(UPPER, call.but(return_lse=True), call.query.dtype, grads)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == call.query.dtype
        assert (got.double() - want).norm() <= tolerance * want.norm() + 1e-12


@pytest.mark.parametrize("dtype", TYPES)
def test_any_strides_give_the_same_bits(dtype: torch.dtype) -> None:
    call = make_call(Problem.parse(f"b=2/hq=2/q=9/k=33/d=16/causal/dtype={str(dtype)[6:]}"))
    tensors = (call.query, call.key, call.value)
    columns_apart = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in tensors]
    gapped = [torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0] for x in tensors]
    expected = UPPER(*tensors, is_causal=True)
    assert torch.equal(UPPER(*columns_apart, is_causal=True), expected)
    assert torch.equal(UPPER(*gapped, is_causal=True), expected)


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 40])
def test_parts_of_the_keys_merge_to_the_whole(splits: int) -> None:
    call = make_call(Problem.parse("b=3/q=5/k=70/d=16/causal/lengths=zero/dtype=float32")).but(return_lse=True)
    output, lse = CudaFlash(splits=splits)(call.query, call.key, call.value, **call.options())
    truth, budget = answer(call), error_budget(call)
    assert ((output.double() - truth.output).abs() <= 2 * budget.output).all()
    assert truth.lse is not None
    torch.testing.assert_close(lse.double(), truth.lse, atol=1e-5, rtol=1e-5)


def test_few_rows_over_many_keys_are_split_by_the_lengths_alone() -> None:
    assert [splits_for(1, k_len) for k_len in (0, 1, 256, 257, 100_000)] == [1, 1, 1, 2, 32]
    assert splits_for(17, 100_000) == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_threads_changes_no_bit(dtype: str, seed: int) -> None:
    call = make_call(Problem.parse(f"b=2/hq=4/hkv=2/q=19/k=70/d=32/causal/grad/dtype={dtype}"))
    shuffled = CudaFlash(emulated=Emulated(seed))
    grads = grads_of_results(call)
    for got, want in zip(
        gradients(shuffled, call.but(return_lse=True), call.query.dtype, grads),
        gradients(UPPER, call.but(return_lse=True), call.query.dtype, grads),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_rows_of_one_low_bias_keep_their_gradients() -> None:
    """The maximum and the sum are kept apart: -1e9 + log l is -1e9 in float32, and would give each weight as 1."""
    query, key, value = torch.ones(1, 1, 1, 4), torch.ones(1, 1, 32, 4), torch.ones(1, 1, 32, 4, requires_grad=True)
    output = UPPER(query, key, value, attn_mask=torch.full((1, 32), -1e9))
    (found,) = torch.autograd.grad(output.sum(), value)
    torch.testing.assert_close(found, torch.full_like(value, 1 / 32))


def test_every_head_dim_has_its_build() -> None:
    assert [build_for(torch.float32, dim).dim for dim in (1, 32, 33, 64, 65, 128, 129, 256)] == sorted([*DIMS, *DIMS])
    assert Build(torch.float16, 64).macros() == {"DTYPE": "__half", "PADDED_DIM": "64"}


def test_the_hardware_is_told_as_it_is() -> None:
    assert hardware(Kernel("cuda_flash", "cuda_flash", UPPER, UPPER.capabilities)) == "CUDA emulated on cpu"


X = torch.zeros(1, 1, 4, 8)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ((X.double(),) * 3, "query torch.float64: cuda_flash takes torch.float32, torch.float16, torch.bfloat16"),
        ((torch.zeros(1, 1, 4, 257),) * 3, "head_dim 257, value_dim 257: cuda_flash takes 1 to 256"),
        ((X, X.to("meta"), X.to("meta")), "tensors on cpu and meta: put all on one device"),
        ((X.to("meta"),) * 3, "tensors on meta: cuda_flash runs on cpu, emulated, and on cuda"),
    ],
)
def test_what_it_does_not_take_is_told_in_a_line(tensors: tuple[torch.Tensor, ...], words: str) -> None:
    with pytest.raises(InputError) as told:
        UPPER(*tensors)
    assert str(told.value) == words


def test_without_a_compiler_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match=r"^needs a CUDA GPU, or g\+\+ and CUDA's headers .*no-such-compiler"):
        backends.backend()


def test_without_headers_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/no/such/toolkit")
    with pytest.raises(Unavailable, match="/no/such/toolkit"):
        backends.lower_right()
    assert toolkit.compiler()


def test_the_seed_of_the_environment_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backends.SEED, "7")
    assert backends.backend().emulated.seed == 7
    monkeypatch.setenv(backends.SEED, "x")
    with pytest.raises(InputError, match="ATTNSPEC_CUDA_SEED is 'x'"):
        backends.backend()


def test_no_source_launches_kernels_itself() -> None:
    for path in SOURCE.parent.glob("*.cu*"):
        assert "<<<" not in path.read_text(encoding="utf-8")
