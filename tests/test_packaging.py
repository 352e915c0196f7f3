"""The wheel holds what the tree holds, and works elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("spec", "reference", "implementations", "golden", "conformance")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in (*ROOMS, "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, copy / name, ignore=ignore) if source.is_dir() else shutil.copy(source, copy / name)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(copy)]
    subprocess.run(build, check=True)
    return next(out.glob("attnspec-*.whl"))


def files_of_tree() -> set[str]:
    """Every file of the rooms, as the wheel should name it."""
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file())
    return {f"attnspec/{path.relative_to(ROOT)}" for path in found if "__pycache__" not in path.parts}


def test_wheel_holds_every_file_of_the_rooms(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_of_tree()


def test_wheel_works_elsewhere(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = "import sys; sys.path.insert(0, 'site'); import attnspec.golden.store as s; print(s.__file__, s.check())"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    place, count = done.stdout.split()
    assert place.startswith((str(tmp_path), "site"))
    assert int(count) >= 60


def test_every_subpackage_is_listed() -> None:
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("__init__.py")}
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    assert {f"attnspec.{'.'.join(folder.relative_to(ROOT).parts)}" for folder in folders} == listed


def test_versions_agree() -> None:
    from attnspec.conformance import SUITE_VERSION

    assert PROJECT["project"]["version"] == SUITE_VERSION
    assert f"## {SUITE_VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_from_rooms_below(room: str) -> None:
    allowed = {
        "spec": set(),
        "reference": {"spec"},
        "implementations": {"spec", "reference"},
        "golden": {"spec", "reference"},
        "conformance": {"spec", "reference", "golden", "implementations.registry"},
    }[room]
    for path in (ROOT / room).rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) > 1 and words[0] in ("from", "import") and words[1].startswith("attnspec."):
                module = words[1].removeprefix("attnspec.")
                place = (
                    ".".join(module.split(".")[:2]) if module.startswith("implementations") else module.split(".")[0]
                )
                own = module.split(".")[0] == room
                assert own or place in allowed, f"{path.relative_to(ROOT)}: {line.strip()}"
