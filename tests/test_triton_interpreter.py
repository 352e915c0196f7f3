"""The traps of Triton's interpreter: they are there, and the helpers of the package avoid each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as tritons

from attnspec.implementations.triton_flash.interpreter import dot, launch, round_to, span
from attnspec.implementations.triton_flash.tiles import tanh

SIZE = 1024
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled kernels have no such traps")


@triton.jit
def plain_cast(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at).to(tl.bfloat16))


@triton.jit
def rounded_cast(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, round_to(tl.load(x + at), tl.bfloat16))


@triton.jit
def plain_dot(a, b, c):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def widened_dot(a, b, c):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(c + at, dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def copy(x, y, first, count, SIZE: tl.constexpr):
    at = first + tl.arange(0, SIZE)
    tl.store(y + tl.arange(0, SIZE), tl.load(x + at, mask=at < count, other=0.0))


@triton.jit
def tanh_of(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(y + at, tanh(tl.load(x + at)))


@pytest.fixture
def numbers() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, generator=generator) * 8
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, torch.inf, -torch.inf, 3.3e38])
    return torch.cat([ties, x[: SIZE - len(ties)]])


def test_a_cast_to_bfloat16_cuts_off_and_round_to_does_not(numbers: torch.Tensor) -> None:
    cut, rounded = torch.empty(SIZE, dtype=torch.bfloat16), torch.empty(SIZE, dtype=torch.bfloat16)
    plain_cast[(1,)](numbers, cut, SIZE)
    rounded_cast[(1,)](numbers, rounded, SIZE)
    assert (cut != numbers.bfloat16()).float().mean() > 0.25
    assert torch.equal(rounded, numbers.bfloat16())


def test_round_to_keeps_a_nan_whatever_its_bits_are() -> None:
    bits = torch.tensor([0x7FFFFFFF, 0x7F800001, -1, 0x7FC00000] * (SIZE // 4), dtype=torch.int32)
    rounded = torch.empty(SIZE, dtype=torch.bfloat16)
    rounded_cast[(1,)](bits.view(torch.float32), rounded, SIZE)
    assert rounded.isnan().all()


def test_a_dot_of_bfloat16_is_wrong_and_dot_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(16, 16, generator=generator).bfloat16() for _ in range(2))
    exact, wrong, right = a.double() @ b.double(), torch.empty(16, 16), torch.empty(16, 16)
    plain_dot[(1,)](a, b, wrong)
    widened_dot[(1,)](a, b, right)
    assert (wrong.double() - exact).abs().max() > 1e6
    assert (right.double() - exact).abs().max() < 1e-5


@pytest.mark.parametrize(("first", "count"), [(-1, 16), (8, 32), (0, 17)])
def test_an_address_outside_of_the_tensors_is_an_error_and_no_crash(first: int, count: int) -> None:
    x, y = torch.zeros(16), torch.zeros(32)
    given: dict[str, Any] = {"x": x, "y": y, "first": first, "count": count, "SIZE": 32}
    with pytest.raises(Exception, match="outside of every tensor of the call"):
        launch(copy, (1,), given)
    launch(copy, (1,), given | {"first": 0, "count": 16})


def test_launch_leaves_the_interpreter_as_it_was() -> None:
    builder = tritons.interpreter_builder
    kept: Callable[[], tuple[Any, ...]] = lambda: (tritons._patch_lang, builder.options, builder.create_masked_load)  # noqa: E731
    before = kept()
    with pytest.raises(Exception, match="outside of every tensor"):
        launch(copy, (1,), {"x": torch.zeros(16), "y": torch.zeros(32), "first": 9, "count": 99, "SIZE": 32})
    assert kept() == before


def test_launch_does_not_write_what_the_kernel_does_not() -> None:
    far = torch.zeros(1).expand(2**40)  # a storage of one number; copied, 4 TiB would be
    out = torch.empty(16)
    launch(copy, (1,), {"x": far, "y": out, "first": 0, "count": 1, "SIZE": 16})
    assert out.tolist() == [0.0] * 16


def test_the_span_of_a_view_ends_with_its_last_element() -> None:
    x = torch.zeros(4, 8)
    first = x.data_ptr()
    assert span(x[1:3, ::2]) == (first + 32, first + 4 * (8 + 8 + 6 + 1))


def test_tanh_is_that_of_float64_within_three_roundings() -> None:
    x = torch.cat([torch.linspace(-12, 12, SIZE - 4), torch.tensor([0.0, 1e-30, torch.inf, -torch.inf])])
    y = torch.empty(SIZE)
    tanh_of[(1,)](x, y, SIZE)
    exact = torch.tanh(x.double())
    assert ((y.double() - exact).abs() <= 3 * 2**-24 * exact.abs()).all()


def test_nothing_of_this_is_in_compiled_code(tmp_path: Path) -> None:
    file = tmp_path / "compiled.py"
    file.write_text(COMPILED, encoding="utf-8")
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    ran = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "tensor<16x16xbf16> * tensor<16x16xbf16> -> tensor<16x16xf32>" in ran.stdout
    assert "arith.truncf" in ran.stdout
    assert not {"tt.bitcast", "arith.bitcast", "arith.shrui", "arith.extf"} & set(ran.stdout.split())


COMPILED = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnspec.implementations.triton_flash.interpreter import dot, round_to


@triton.jit
def both(a, b, c):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(c + at, round_to(dot(tl.load(a + at), tl.load(b + at)), tl.bfloat16))


source = ASTSource(fn=both, signature=dict.fromkeys("abc", "*bf16"), constexprs={})
print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"])
"""
