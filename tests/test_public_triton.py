"""What is mended in Triton's interpreter for kernels of others, each against a kernel of a few lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
FOLDER = Path(__file__).parent / "public_triton"
KERNELS = """
import sys
sys.path.insert(0, {folder!r})
import interpreter
import torch, triton, triton.language as tl

@triton.jit
def product(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + i, tl.dot(tl.load(a + i), tl.load(b + i)))

@triton.jit
def sums(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(c + i, tl.load(a + i) + tl.load(b + i))

@triton.jit
def smaller(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(c + i, (tl.load(a + i) < tl.load(b + i)).to(tl.int32))

@triton.jit
def cast(a, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(c + i, tl.load(a + i).to(tl.bfloat16))

@triton.jit
def copy(a, c, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(c + i, tl.load(a + i))

torch.manual_seed(0)
bf16 = lambda *shape: torch.randn(shape).bfloat16()
"""


def run(body: str) -> list[str]:
    """Run lines after the kernels in a process of their own, as the interpreter is switched on for all of one."""
    script = KERNELS.format(folder=str(FOLDER)) + body
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def test_a_product_of_bfloat16_is_that_of_its_numbers() -> None:
    body = """
a, b, c = bf16(16, 16), bf16(16, 16), torch.empty(16, 16)
product[(1,)](a, b, c, 16)
print((c.double() - a.double() @ b.double()).abs().max().item() < 1e-5)
interpreter.InterpreterBuilder.create_dot = interpreter.stock["create_dot"]
product[(1,)](a, b, c, 16)
print((c.double() - a.double() @ b.double()).abs().max().item() > 1e6)
"""
    assert run(body) == ["True", "True"]


def test_sums_and_comparisons_of_bfloat16_are_those_of_its_numbers() -> None:
    body = """
a, b, c, less = bf16(64), bf16(64), bf16(64), torch.empty(64, dtype=torch.int32)
sums[(1,)](a, b, c, 64)
smaller[(1,)](a, b, less, 64)
print(torch.equal(c, a + b), torch.equal(less.bool(), a < b))
"""
    assert run(body) == ["True", "True"]


def test_a_cast_to_bfloat16_rounds_to_nearest_even_and_keeps_what_is_no_number() -> None:
    body = """
ties = torch.tensor([1.00390625, 1.01171875, -1.00390625, torch.inf, -torch.inf, torch.nan, 3.4e38, 0.0])
a = torch.cat([torch.randn(4088) * 8, ties])
c = torch.empty(4096).bfloat16()
cast[(1,)](a, c, 4096)
print(torch.equal(c[:-3], a.bfloat16()[:-3]), c[-3].isnan().item(), c[-2].item() == torch.inf, c[-1].item() == 0)
"""
    assert run(body) == ["True"] * 4


def test_a_load_outside_of_the_tensors_gives_nan_and_a_store_is_dropped() -> None:
    body = """
whole, c = torch.ones(64), torch.zeros(64)
copy[(1,)](whole, c, 64)
print(dict(interpreter.outside) == {})
short = torch.ones(60)
copy[(1,)](short, c, 64)
print(c[:60].eq(1).all().item(), c[60:].isnan().all().item(), interpreter.outside["loads"])
copy[(1,)](whole, short, 64)
print(interpreter.outside["stores"])
"""
    assert run(body) == ["True", "True", "True", "4", "4"]


def test_tensors_say_that_they_are_on_a_gpu_only_while_a_package_asks() -> None:
    body = """
x = torch.ones(1)
with interpreter.as_if_on_a_gpu():
    print(x.is_cuda)
print(x.is_cuda)
"""
    assert run(body) == ["True", "False"]
