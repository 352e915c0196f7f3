"""Every command of the README runs and does what the README says. The two set-up lines are run by `.ci/run`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_needs import needs_toolkit

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CUDA = (ROOT / "docs" / "cuda-emulator.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)
SET_UP = re.compile(r"^python3 -m venv .* && \.venv/bin/tox run -e (conformance|tests)$")


def commands() -> list[tuple[str, int]]:
    """Return every command but the set-up lines, with the exit code that its comment names."""
    lines = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]
    split = [line.partition("#") for line in lines if not SET_UP.match(line)]
    return [(command.strip(), int(comment.split()[-1]) if comment else 0) for command, _, comment in split]


def cases() -> list[object]:
    """Return the commands, those of the CUDA file marked as what needs a compiler."""
    marks = {True: needs_toolkit, False: ()}
    return [
        pytest.param(*pair, marks=marks[".cu:" in pair[0] or "cuda_flash" in pair[0]], id=pair[0])
        for pair in commands()
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the kernels that the README speaks of."""
    place = tmp_path_factory.mktemp("readme")
    (kernel,) = (block for language, block in BLOCKS if language == "python")
    (place / "my_kernel.py").write_text(kernel)
    module, _ = (block for language, block in BLOCKS if language == "py")
    (place / "my_module.py").write_text(module)
    for language, block in BLOCK.findall(CUDA):
        if language in ("cuda", "toml"):
            (place / f"my_kernel.{language.removesuffix('da')}").write_text(block)
    assert ".tril()" in kernel
    (place / "shifted_kernel.py").write_text(kernel.replace(".tril()", ".tril(diagonal=1)"))
    return place


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the README with this environment's programs."""
    words = command.split()
    program = shutil.which(words[0], path=str(Path(sys.executable).parent))
    assert program, f"{words[0]} is not installed beside {sys.executable}"
    arguments = [word.strip("'") for word in words[1:]]
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(("command", "code"), cases())
def test_command_ends_as_the_readme_says(command: str, code: int, folder: Path) -> None:
    done = run(command, folder)
    assert done.returncode == code, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_there_are_two_set_up_lines() -> None:
    lines = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines()]
    assert [match[1] for line in lines if (match := SET_UP.match(line))] == ["conformance", "tests"]


def test_failure_screen_is_the_real_one(folder: Path) -> None:
    (shown,) = (block for language, block in BLOCKS if language == "text")
    case = shown.splitlines()[0].removeprefix("FAIL ")
    real = run(f"attnspec validate shifted_kernel.py:attention --case {case}", folder).stderr
    assert shown.strip() in real
