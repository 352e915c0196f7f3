"""What the emulator stands in for, held to values worked out by hand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from cuda_needs import needs_toolkit

from attnspec.implementations.cuda_emulator import KernelFault, Library, build
from attnspec.implementations.cuda_emulator.build import cache_folder
from attnspec.implementations.cuda_emulator.toolkit import include_folders
from attnspec.spec.errors import InputError

pytestmark = needs_toolkit
SOURCE = Path(__file__).parent / "cuda" / "collectives.cu"


@pytest.fixture(scope="module", params=[(), ("-DCUDA_EMULATOR_UCONTEXT",)], ids=["switched by hand", "ucontext"])
def library(request: pytest.FixtureRequest) -> Library:
    """The kernels, on each way of switching fibers."""
    return build(SOURCE, request.param)


def whole(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@pytest.mark.parametrize("width", [32, 16, 8])
@pytest.mark.parametrize("seed", [None, 7])
def test_shuffles_stay_in_their_width(library: Library, width: int, seed: int | None) -> None:
    given, found = torch.arange(100, 132, dtype=torch.int32), [whole(32) for _ in range(4)]
    library.launch("shuffles", (1,), (32,), 0, [given, *found, width], seed)
    lanes = range(32)
    parts = [lane // width * width for lane in lanes]
    assert found[0].tolist() == [100 + part + 5 for part in parts]
    assert found[1].tolist() == [100 + (lane ^ 3) for lane in lanes]
    assert found[2].tolist() == [100 + lane - 2 * (lane - part >= 2) for lane, part in zip(lanes, parts, strict=True)]
    kept = [lane - part + 2 >= width for lane, part in zip(lanes, parts, strict=True)]
    assert found[3].tolist() == [100 + lane + 2 * (not k) for lane, k in zip(lanes, kept, strict=True)]


def test_votes_and_reductions(library: Library) -> None:
    found = torch.zeros(64, 8, dtype=torch.int32)
    library.launch("votes", (1,), (64,), 0, [found, 40])
    assert found[0].tolist() == [-1, 1, 1, 40, 1, 0, 31 * 16, 15]
    assert found[63].tolist() == [0xFF, 1, 0, 40, 1, 0, 31 * 16, 16]


def test_blocks_and_threads_know_their_indices(library: Library) -> None:
    found = torch.full((2 * 3 * 2, 4 * 2 * 3), -1, dtype=torch.int32)
    library.launch("indices", (2, 3, 2), (4, 2, 3), 0, [found])
    assert found.tolist() == [[1000 * block + thread for thread in range(24)] for block in range(12)]


def test_a_seed_permutes_blocks_and_threads(library: Library) -> None:
    orders = []
    for seed in (None, 0, 1, 1, 2):
        blocks, threads = whole(5 * 32), whole(5 * 32)
        library.launch("order", (5,), (32,), 0, [whole(1), blocks, threads], seed)
        assert sorted(zip(blocks.tolist(), threads.tolist(), strict=True)) == [
            (b, t) for b in range(5) for t in range(32)
        ]
        orders.append((blocks.tolist(), threads.tolist()))
    none, zero, one, one_again, two = orders
    assert none == zero == ([b for b in range(5) for _ in range(32)], list(range(32)) * 5)
    assert one == one_again != none
    assert two[1] != one[1] != none[1]


def test_atomics(library: Library) -> None:
    numbers = torch.tensor([0, -5, 5, 10], dtype=torch.int32)
    real, wide, half = torch.zeros(1), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float16)
    library.launch("atomics", (2,), (32,), 0, [numbers, real, wide, half])
    assert numbers.tolist() == [2 * 31 * 16, 31, 0, 32]  # 10 is swapped by lane 10, 11 by lane 11, and so on
    assert (real.item(), wide.item(), half.item()) == (32.0, 64 << 40, 16.0)


def test_shared_memory_that_is_not_set_reads_as_nan_in_each_block(library: Library) -> None:
    found = torch.zeros(96)
    library.launch("unset", (3,), (32,), 32 * 4, [found])
    assert found.isnan().all()


@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_mma_multiplies_matrices(library: Library, name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    dtype = getattr(torch, name)
    a, b = (torch.randn(n, 16, generator=generator).to(dtype) for n in (16, 8))
    found = torch.zeros(16, 8)
    library.launch(f"multiply_{name}", (1,), (32,), 0, [a, b, found])
    torch.testing.assert_close(found.double(), 1 + a.double() @ b.double().T, atol=4e-6, rtol=0)


def test_threads_that_have_ended_hold_no_one_up(library: Library) -> None:
    found = whole(64)
    library.launch("early_exit", (1,), (64,), 0, [found, 40])
    assert found[:40].tolist() == [i ^ 1 for i in range(40)]
    assert not found[40:].any()


def test_a_compiled_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNSPEC_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "one.cu"
    source.write_text('extern "C" __global__ void one(int* x) { *x = 1; }\n')
    first = build(source)
    began = first.path.stat().st_mtime_ns
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [first.path.name]
    assert build(source).path.stat().st_mtime_ns == began
    assert build(source, ("-DOTHER=1", "-O1")).path != first.path
    (tmp_path / "two.cuh").write_text("")
    source.write_text('#include "two.cuh"\nextern "C" __global__ void one(int* x) { *x = 2; }\n')
    found = whole(1)
    build(source).launch("one", (1,), (1,), 0, [found])
    assert found.item() == 2


def test_the_cache_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNSPEC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "attnspec"
    assert cache_folder().stat().st_mode & 0o077 == 0


def test_headers_come_from_the_named_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders = include_folders()
    (tmp_path / "include").symlink_to(folders[0])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert include_folders()[0] == tmp_path / "include"


KERNEL = 'extern "C" __global__ void one(const float* x, int n, float s) {{ {} }}\n'


def told(tmp_path: Path, text: str) -> str:
    source = tmp_path / "bad.cu"
    source.write_text(text)
    with pytest.raises(InputError) as caught:
        build(source)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("\n\n  int a = y; int z = w;", r"bad.cu does not compile: \S+bad.cu:3: .y. was not declared"),
        ("\n one<<<1, 32>>>(x, n, s);", "bad.cu:2: .*leave <<<>>> out, by #ifndef CUDA_EMULATOR"),
        ("__shared__ float a[4] = {1};", "cannot read the declaration '__shared__ float a"),
        ('\n}\n#include "none.cuh"\nvoid f() {', "bad.cu:3: none.cuh: No such file"),
        (
            '\n  int a;\n  asm volatile("mov.u32 %0, %%laneid;"\n : "=r"(a));',
            "bad.cu:3: inline assembly .no such instruction: .mov",
        ),
        ('\n  asm("{\\n\\t.reg .pred p;\\n\\t}");', "bad.cu:2: inline assembly .* the CPU has no PTX; use C.. there"),
        ('\n  float f;\n  __asm__ volatile("ex2 %0;" : "=h"(f));', "bad.cu:3: inline assembly .impossible constraint"),
    ],
)
def test_the_first_error_of_the_compiler_is_told(tmp_path: Path, body: str, message: str) -> None:
    assert re.search(message, told(tmp_path, KERNEL.format(body)))


@pytest.mark.parametrize(
    ("initialiser", "message"),
    [
        (
            "[] { for (volatile int i = 0;; i = 1) {} return 0; }()",
            "does not load within 2 s: look at the initialisers",
        ),
        ("(exit(3), 0)", "does not load .the process ended.: look at the initialisers"),
        ("*(volatile int*)8", "does not load .signal 11.: look at the initialisers"),
        ("missing()", "does not load .*undefined symbol: .*missing"),
    ],
)
def test_code_that_does_not_load_is_told_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, initialiser: str, message: str
) -> None:
    monkeypatch.setenv("ATTNSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys.modules[build.__module__], "LOADING_SECONDS", 2)
    text = f"#include <cstdlib>\nint missing();\nstatic int value = {initialiser};\n" + KERNEL.format("")
    assert re.search(message, told(tmp_path, text))
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("before", ["", "#include <cassert>\n", "#include <assert.h>\n"])
@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ("assert(threadIdx.x < 3);", r"stops.cu:{}: assertion 'threadIdx.x < 3' fails \(block 1,0,0 thread 3,0,0\)$"),
        ("if (threadIdx.x == 3) __trap();", r"stops.cu:{}: __trap\(\) is called \(block 1,0,0 thread 3,0,0\)$"),
        (
            "if (threadIdx.x == 3) __builtin_trap();",
            r"an instruction that the processor refuses, such as __builtin_trap",
        ),
    ],
)
def test_a_kernel_that_stops_is_a_fault_at_its_line_and_the_process_goes_on(
    tmp_path: Path, before: str, stops: str, message: str
) -> None:
    source = tmp_path / "stops.cu"
    kernel = 'extern "C" __global__ void one(int* x) {{\n  x[blockIdx.x] += 1;\n  if (blockIdx.x == 1) {{ {} }}\n}}\n'
    source.write_text(before + kernel.format(stops))
    library, found = build(source), whole(3)
    for _ in range(2):
        with pytest.raises(KernelFault) as caught:
            library.launch("one", (3,), (32,), 0, [found])
        assert re.search(message.format(3 + before.count("\n")), str(caught.value))
    assert found.tolist() == [64, 8, 0]
    library.launch("one", (1,), (32,), 0, [found])
    assert found[0] == 96


def test_an_assertion_that_holds_or_is_switched_off_does_nothing(tmp_path: Path) -> None:
    source, found = tmp_path / "holds.cu", whole(1)
    source.write_text('extern "C" __global__ void one(int* x) { assert(*x == 0); *x = 1; }\n')
    build(source).launch("one", (1,), (1,), 0, [found])
    build(source, ("-DNDEBUG",)).launch("one", (1,), (1,), 0, [found])
    assert found.item() == 1


def test_a_file_without_a_kernel_is_told(tmp_path: Path) -> None:
    assert "no kernel; define one as extern" in told(tmp_path, "__global__ void f() {}\n")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CXX", "no-such-compiler", "no C\\+\\+ compiler: 'no-such-compiler' is not on the PATH"),
        ("CUDA_HOME", "/no/toolkit", "CUDA_HOME is /no/toolkit, where include/ lacks cuda_fp16.h"),
        ("ATTNSPEC_CACHE", "/proc/none", "ATTNSPEC_CACHE is /proc/none, which cannot be written"),
    ],
)
def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=message):
        build(SOURCE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "two"}, "no kernel 'two': the file has one"),
        ({"args": [torch.zeros(1), 1]}, r"takes 3 arguments \(pointer, int32, float32\), and 2 were given"),
        ({"args": [torch.zeros(1), 1.5, 1.0]}, "argument 2 of type int32: 1.5 was given, which is no whole number"),
        ({"args": [torch.zeros(1), torch.zeros(1), 1.0]}, "argument 2 of type int32: a tensor was given"),
        ({"args": [1, 1, 1.0]}, "argument 1 of type pointer: int was given"),
        ({"args": [torch.zeros(1, device="meta"), 1, 1.0]}, "the tensor is on meta"),
        ({"grid": (0,)}, r"the grid is \(0,\): use 1 to 3 numbers"),
        ({"block": (2000,)}, "is over 1024 threads"),
        ({"shared_bytes": 300_000}, "300000 bytes of dynamic shared memory: use 0 to 232448"),
    ],
)
def test_a_launch_that_does_not_fit_is_told(tmp_path: Path, change: dict[str, object], message: str) -> None:
    source = tmp_path / "one.cu"
    source.write_text(KERNEL.format(""))
    fits = {"kernel": "one", "grid": (1,), "block": (32,), "shared_bytes": 0, "args": [torch.zeros(1), 1, 1.0]}
    library = build(source)
    library.launch(**fits)
    with pytest.raises(InputError, match=message):
        library.launch(**(fits | change))
