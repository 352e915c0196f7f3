"""The backend triton_flash: within the budget for every option, in small tiles and in splits, and clear refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.environment import hardware
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.conformance.targets import resolve
from attnspec.golden.inputs import make_call
from attnspec.implementations.triton_flash.backend import TritonFlash, band
from attnspec.implementations.triton_flash.launch import tile_of, width_of
from attnspec.reference.attention import answer
from attnspec.reference.backward import gradients as reference_gradients
from attnspec.spec.call import Call
from attnspec.spec.errors import InputError, Unavailable
from attnspec.spec.problem import Problem

DTYPES = ("float32", "float16", "bfloat16")
OPTIONS = (
    "q=17/k=33/d=16",
    "q=1/k=70/d=64/causal",
    "q=5/k=3/d=8/causal=lower_right",
    "b=2/hq=6/hkv=2/q=9/k=20/d=8/dv=24/mask=bool.b11k.padding",
    "b=3/bkv=1/hq=4/hkv=1/q=7/k=12/d=8/mask=float.hqk.bias/causal",
    "q=12/k=40/d=65/mask=bool.qk.empty_rows/scale=-0.4",
    "q=12/k=20/d=8/mask=float.k.bias/scale=0",
    "q=40/k=40/d=8/window=5.3",
    "hq=2/q=40/k=30/d=8/causal=lower_right/window=5.-1",
    "b=2/q=20/k=45/d=8/lengths=ragged/causal=lower_right",
    "b=3/hq=2/q=9/k=20/d=8/lengths=zero",
    "hq=4/hkv=2/q=5/k=33/d=8/sinks/alibi",
    "hq=2/q=12/k=20/d=8/mask=bool.qk.empty_rows/sinks=high",
    "q=17/k=33/d=8/softcap=2/scores=8",
    "q=20/k=33/d=8/scores=8/keys=growing",
    "q=4/k=0/d=8",
    "q=0/k=4/d=8",
)
KINDS = {"small": {"tile": (16, 16)}, "splits": {"tile": (16, 16), "split_keys": 16}, "whole": {}}


def differentiable(call: Call) -> dict[str, torch.Tensor]:
    """The tensors of a call that have a gradient, as leaves, by name."""
    names = ("query", "key", "value", "attn_mask", "sinks")
    given = {name: getattr(call, name) for name in names}
    return {name: x.detach().requires_grad_() for name, x in given.items() if x is not None and x.is_floating_point()}


def over_budget(error: torch.Tensor, budget: torch.Tensor) -> float:
    """The worst error over budget, infinite for NaN and for an error where there is no budget."""
    if not error.numel():
        return 0.0
    over = torch.where(error == 0, 0.0, error.abs() / budget)
    return float(over.nan_to_num(nan=torch.inf).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("text", OPTIONS)
def test_every_option_is_within_the_budget_forward_and_back(text: str, dtype: str) -> None:
    problem = Problem.parse(f"{text}/grad=lse").but(dtype=dtype)
    call = make_call(problem)
    kind = KINDS["small" if dtype != "float32" else "splits" if len(text) % 2 else "whole"]
    backend = TritonFlash("it", problem.corner, **kind)  # type: ignore[arg-type]
    leaves = differentiable(call)
    given = call.but(**leaves)
    output, lse = backend(given.query, given.key, given.value, **given.options() | {"return_lse": True})
    exact = answer(call, problem.corner)
    budget = error_budget(call, causal_alignment=problem.corner)
    assert output.dtype == call.query.dtype
    assert lse.dtype == torch.float32
    assert over_budget(output.detach().double() - exact.output, budget.output) < 1
    seen = exact.lse > -torch.inf
    assert torch.equal(lse == -torch.inf, ~seen)
    assert over_budget((lse.detach().double() - exact.lse)[seen], budget.lse[seen]) < 1
    flows = torch.where(seen, call.grad_lse, 0.0)
    found = torch.autograd.grad((output, lse), list(leaves.values()), (call.grad_output, flows))
    right = reference_gradients(call.but(grad_lse=flows), problem.corner)
    allowed = gradient_budget(call, call.grad_output, flows, causal_alignment=problem.corner)
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        assert gradient.dtype == leaf.dtype
        assert over_budget(gradient.double() - getattr(right, name), getattr(allowed, name)) < 1, name


@pytest.mark.parametrize("tile", [(16, 16), (32, 16), (16, 64)])
def test_tiles_of_any_size_agree(tile: tuple[int, int]) -> None:
    call = make_call(Problem.parse("hq=4/hkv=2/q=23/k=45/d=12/causal/window=9.2"))
    small, whole = (
        backend(call.query, call.key, call.value, is_causal=True, window_size=(9, 2), enable_gqa=True)
        for backend in (TritonFlash(tile=tile), TritonFlash())
    )
    torch.testing.assert_close(small, whole, rtol=0, atol=2e-6)


def test_splits_of_the_keys_keep_a_gradient() -> None:
    call = make_call(Problem.parse("q=5/k=40/d=8"))
    query = call.query.clone().requires_grad_()
    split, whole = (
        torch.autograd.grad(backend(query, call.key, call.value).sum(), query)[0]
        for backend in (TritonFlash(tile=(16, 16), split_keys=16), TritonFlash())
    )
    torch.testing.assert_close(split, whole, rtol=0, atol=2e-6)


@pytest.mark.parametrize("head_dim", [1, 3, 200, 256])
def test_any_head_dim_to_256(head_dim: int) -> None:
    call = make_call(Problem.parse(f"q=5/k=9/d={head_dim}/dv=7"))
    found = TritonFlash()(call.query, call.key, call.value)
    assert over_budget(found.double() - answer(call, "upper_left").output, error_budget(call).output) < 1


def test_strides_of_any_kind_are_read_where_they_lie() -> None:
    call = make_call(Problem.parse("b=2/hq=2/q=9/k=20/d=8/mask=float.bhqk.bias"))
    plain = TritonFlash()(call.query, call.key, call.value, attn_mask=call.attn_mask)
    views = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in (call.query, call.key, call.value)]
    mask = call.attn_mask.transpose(2, 3).contiguous().transpose(2, 3)  # type: ignore[union-attr]
    assert views[0].stride(3) != 1
    assert torch.equal(TritonFlash()(*views, attn_mask=mask), plain)


def test_a_row_sees_what_is_worked_out_by_hand() -> None:
    query, key = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 5, 4)
    value = torch.tensor([1.0, 2, 4, 8, 16]).view(1, 1, 5, 1)
    causal = {"is_causal": True, "return_lse": True}
    upper, lse = TritonFlash()(query, key, value, **causal)  # type: ignore[arg-type]
    assert upper.flatten().tolist() == pytest.approx([1, 3 / 2, 7 / 3])
    assert lse.flatten().exp().tolist() == pytest.approx([1, 2, 3])
    lower, lse = TritonFlash("x", "lower_right")(query, key, value, **causal)  # type: ignore[arg-type]
    assert lower.flatten().tolist() == pytest.approx([7 / 3, 15 / 4, 31 / 5])
    assert lse.flatten().exp().tolist() == pytest.approx([3, 4, 5])


def test_a_tile_that_is_hidden_whole_is_not_read() -> None:
    query, key, value = (torch.randn(1, 1, 40, 8) for _ in range(3))
    plain = TritonFlash(tile=(16, 16))(query, key, value, window_size=(3, 0))
    value[:, :, :16] = torch.nan
    found = TritonFlash(tile=(16, 16))(query, key, value, window_size=(3, 0))
    assert torch.equal(found[:, :, 32:], plain[:, :, 32:])


def test_an_input_that_asks_alone_gets_the_same_gradient() -> None:
    call = make_call(Problem.parse("hq=2/q=5/k=9/d=8/mask=float.1qk.bias/grad=output"))
    leaves = differentiable(call)
    of_all = gradients_of(call, leaves)
    for name, leaf in leaves.items():
        assert torch.equal(gradients_of(call, {name: leaf})[name], of_all[name])


def gradients_of(call: Call, leaves: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients of a call of which only some inputs ask for one."""
    given = call.but(**leaves)
    output = TritonFlash()(given.query, given.key, given.value, attn_mask=given.attn_mask)
    found = torch.autograd.grad(output, list(leaves.values()), call.grad_output)
    return dict(zip(leaves, found, strict=True))


def test_the_backend_is_registered_and_names_what_computes() -> None:
    for name, corner in (("triton_flash", "upper_left"), ("triton_flash.lower_right", "lower_right")):
        kernel = resolve(name)
        assert kernel.name == name
        assert kernel.capabilities.causal_alignment == corner
        assert kernel.capabilities.cost == ("native" if torch.cuda.is_available() else "emulated")
        assert hardware(kernel) == ("cuda" if torch.cuda.is_available() else "triton interpreter")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float64}, "query is torch.float64: use float32, float16 or bfloat16"),
        ({"head_dim": 257}, "head_dim 257, value_dim 257: use 1 to 256"),
        ({"device": "meta"}, "tensors on cpu and meta: use one device"),
        ({"alibi_slopes": torch.ones(2, requires_grad=True)}, "alibi_slopes requires a gradient"),
        ({"alibi_slopes": torch.ones(3)}, r"alibi_slopes torch.float32 \(3,\): use floating numbers"),
        ({"sinks": torch.ones(3)}, r"sinks torch.float32 \(3,\): use one floating number a head"),
        ({"window_size": (-2, 0)}, "window_size"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_bad_input_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    options = dict(changes)
    dtype, dim, device = options.pop("dtype", torch.float32), options.pop("head_dim", 8), options.pop("device", "cpu")
    query = torch.zeros(1, 2, 3, dim, dtype=dtype)
    key = torch.zeros(1, 2, 4, dim, dtype=dtype, device=device)
    with pytest.raises(InputError, match=message) as caught:
        TritonFlash()(query, key, key, **options)
    assert "\n" not in str(caught.value)


def test_tensors_on_a_device_without_the_kernels_are_refused() -> None:
    tensor = torch.zeros(1, 1, 2, 8, device="meta")
    with pytest.raises(InputError, match="query is on meta: "):
        TritonFlash()(tensor, tensor, tensor)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and nothing is missing")
@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("sys.modules['triton'] = None", "needs triton 3.7 or newer, the extra attnspec\\[triton\\]"),
        ("import triton", "triton was imported before TRITON_INTERPRET was set"),
        ("os.environ['TRITON_INTERPRET'] = '0'", "needs a CUDA GPU, or TRITON_INTERPRET=1"),
    ],
)
def test_what_is_missing_is_said_and_no_import_error(first: str, message: str) -> None:
    code = (
        f"import os, sys; os.environ.pop('TRITON_INTERPRET', None); {first}\n"
        "from attnspec.implementations.registry import status; print(status('triton_flash'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.startswith("unavailable: ")
    with pytest.raises(Unavailable, match=message):
        raise Unavailable(ran.stdout)


def test_windows_reach_no_further_than_the_tokens() -> None:
    assert band((2**31 - 1, -1), False, 100) == (100, None)
    assert band((3, 5), True, 100) == (3, 0)
    assert band(None, False, 100) == (None, None)


def test_tiles_of_the_interpreter_hold_what_there_is() -> None:
    assert tile_of(1, 70, 64) == (16, 128)
    assert tile_of(4096, 4096, 256) == (256, 256)
    assert tile_of(4096, 4096, 256, 96) == (256, 32)


@pytest.mark.parametrize(
    ("tile", "split_keys", "message"),
    [
        ((16, 24), None, r"tile is \(16, 24\): use \(rows, keys\), each a power of two from 16 on"),
        ((8, 16), None, "each a power of two from 16 on"),
        ((16, 32), 48, "split_keys is 48: use a multiple of 32"),
        (None, 24, "split_keys is 24: use a multiple of 16"),
        (None, 0, "split_keys is 0: use a multiple of 16"),
    ],
)
def test_a_tile_that_cannot_be_is_refused(tile: tuple[int, int] | None, split_keys: int | None, message: str) -> None:
    tensor = torch.zeros(1, 1, 4, 8)
    with pytest.raises(InputError, match=message):
        TritonFlash(tile=tile, split_keys=split_keys)(tensor, tensor, tensor)


def test_splits_of_an_odd_number_of_tiles_are_whole() -> None:
    call = make_call(Problem.parse("q=5/k=120/d=8/causal=lower_right"))
    found = TritonFlash("x", "lower_right", split_keys=48)(call.query, call.key, call.value, is_causal=True)
    assert over_budget(found.double() - answer(call, "lower_right").output, error_budget(call).output) < 1
    assert [width_of(dim) for dim in (1, 16, 17, 256)] == [16, 16, 32, 256]
