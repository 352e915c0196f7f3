"""The CUDA kernels compile for GPUs that are not there, and take of them what the recorded table says: no spill."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attnspec.implementations.cuda_flash import resources
from attnspec.implementations.cuda_flash.builds import SOURCE, TYPES, Build
from attnspec.implementations.cuda_flash.compile import ARCHS, Usage, compile_cubin, compiler_version, usages
from attnspec.implementations.cuda_flash.launcher import library, sizes_of
from attnspec.spec.errors import InputError, Unavailable

pytest.importorskip("cuda.core", reason="the dependency group cuda is not installed")
PAGE = Path(__file__).parent.parent / "docs" / "cuda-flash-resources.md"
TABLE: dict[str, Any] = json.loads(resources.RECORDED.read_text(encoding="utf-8"))
ROWS = {(row["build"], row["arch"]): row for row in TABLE["rows"]}
BUILDS = tuple(resources.builds())
NAMED = {build.name: build for build in BUILDS}
SMALL = Build(torch.float32, 32)
STRICT = ("-Werror", "all-warnings", "-Xptxas", "--warn-on-local-memory-usage,--warn-on-spills")
SPILLS = """
extern "C" __global__ void fault(const float* from, float* to, int n) {
  float kept[64] = {};  // indexed as the program runs: in local memory
  for (int i = 0; i < n; ++i) kept[int(from[i]) % 64] += 1;
  for (int i = 0; i < n; ++i) to[i] = kept[int(from[n + i]) % 64];
}
"""


@pytest.fixture
def spilling(tmp_path: Path) -> Path:
    path = tmp_path / "spills.cu"
    path.write_text(SPILLS)
    return path


def test_the_table_holds_every_build_and_no_fault() -> None:
    assert set(ROWS) == {(build.name, arch) for build in BUILDS for arch in ARCHS}
    assert [fault for row in ROWS.values() for fault in resources.faults(row)] == []
    assert PAGE.read_text(encoding="utf-8") == resources.page(TABLE)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", NAMED)
def test_every_build_compiles_and_takes_what_is_recorded(name: str, arch: str) -> None:
    found = resources.figures(NAMED[name], arch, compile_cubin(NAMED[name], arch).usage)
    assert resources.faults(found) == []
    if compiler_version() == TABLE["nvrtc"]:
        assert found == ROWS[name, arch]


@pytest.mark.parametrize("name", NAMED)
def test_the_shared_memory_is_that_of_the_kernels(name: str) -> None:
    sizes = sizes_of(library(NAMED[name]))
    assert (sizes.forward_bytes, sizes.backward_bytes) == (
        ROWS[name, "sm_80"]["forward_shared"],
        ROWS[name, "sm_80"]["backward_shared"],
    )


def test_an_array_in_local_memory_is_a_fault(spilling: Path) -> None:
    usage = compile_cubin(SMALL, "sm_90", spilling).usage["fault"]
    assert usage.stack == 256
    row = ROWS["float32 d32", "sm_90"]
    (told,) = resources.faults(row | {"kernels": row["kernels"] | {"attention_merge": usage._asdict()}})
    assert told == "attention_merge of float32 d32 for sm_90 keeps 256 bytes in local memory, 0 of them spilled"


def test_too_much_shared_memory_is_a_fault() -> None:
    (told,) = resources.faults(ROWS["float32 d256", "sm_80"] | {"forward_shared": 170_000})
    assert told == "forward_shared of float32 d256 is 170000 bytes; a block of sm_80 may have 166912"


def nvcc(source: Path, build: Build, out: Path) -> subprocess.CompletedProcess[str]:
    macros = [f"-D{name}={value}" for name, value in build.macros().items()]
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-cubin", *macros, *STRICT, str(source), "-o", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("dtype", TYPES)
def test_nvcc_has_nothing_to_warn_of(dtype: torch.dtype, tmp_path: Path) -> None:
    done = nvcc(SOURCE, Build(dtype, 64), tmp_path / "flash.cubin")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_nvcc_refuses_an_array_in_local_memory(spilling: Path, tmp_path: Path) -> None:
    done = nvcc(spilling, SMALL, tmp_path / "spills.cubin")
    assert done.returncode != 0
    assert "Local memory used for function 'fault'" in done.stderr


def test_a_log_of_ptxas_is_read() -> None:
    log = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 96 registers, used 1 barriers, 400 bytes smem\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90'\n"
        "ptxas info    : Used 10 registers\n"
    )
    assert usages(log) == {"a": Usage(96, 8, 12, 16, 400), "b": Usage(10, 0, 0, 0, 0)}


@pytest.mark.parametrize("arch", ["sm_75", "90", "compute_90", ""])
def test_an_architecture_that_is_too_old_or_none_is_told(arch: str) -> None:
    with pytest.raises(InputError, match=r"^arch '.*': use sm_80 or newer, such as sm_80, sm_90, sm_100$"):
        compile_cubin(SMALL, arch)


def test_an_architecture_that_the_compiler_does_not_know_is_told() -> None:
    with pytest.raises(InputError, match=r"^arch 'sm_99': NVRTC does not know it; use one such as"):
        compile_cubin(SMALL, "sm_99")


def test_the_first_error_is_told(tmp_path: Path) -> None:
    source = tmp_path / "bad.cu"
    source.write_text('extern "C" __global__ void k(int* x) {\n  *x = y;\n  *x = z;\n}\n')
    with pytest.raises(InputError) as told:
        compile_cubin(SMALL, "sm_90", source)
    assert str(told.value) == 'bad.cu does not compile for sm_90: bad.cu:2: identifier "y" is undefined'


def test_without_the_packages_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(Unavailable, match=r"^needs cuda-core, cuda-bindings and nvidia-cuda-nvrtc: pip install"):
        compile_cubin(SMALL, "sm_90")
