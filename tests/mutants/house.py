"""The mutant house: a mutant is an honest kernel with one planted fault, readable as a diff.

The suite must find every mutant and name the rule that it breaks, and must accuse no kernel of `tests/honest`. To see a
mutant whole, or to run `attnspec validate` on it, write it out:

    python tests/mutants/house.py NAME [FILE]
"""

from __future__ import annotations

import argparse
import ast
import atexit
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that `mutants` is the package, here as under pytest

from planting import planted

from attnspec.conformance.kernel import Kernel
from attnspec.conformance.targets import resolve

HONEST = Path(__file__).resolve().parents[1] / "honest"


@dataclass(frozen=True)
class Mutant:
    """An honest kernel's source with one planted fault.

    name: a slug. base: the module in `tests/honest`. old: what stands exactly once in it; new: what is put there;
    also: further pairs of the same kind, for a fault of two places. kind: the kind of public fault it stands for,
    `family/kind` as in the survey of public faults, or `none public: ` and a reason. rule: id of the rule that must be
    reported as broken. mistake: its name in the catalogue of known mistakes, where it has one.
    """

    name: str
    base: str
    old: str
    new: str
    kind: str
    rule: str
    mistake: str | None = None
    also: tuple[tuple[str, str], ...] = ()

    @property
    def changes(self) -> tuple[tuple[str, str], ...]:
        """The pairs (old, new)."""
        return (self.old, self.new), *self.also

    def source(self) -> str:
        """Return the mutant's source. Raises ValueError where an `old` does not stand exactly once in the base."""
        text = (HONEST / f"{self.base}.py").read_text(encoding="utf-8")
        return planted(text, self.changes, self.name, self.base)


def kernel_of(mutant: Mutant) -> Kernel:
    """Return the mutant as the suite sees it. Its file lies outside the tree, until this process ends."""
    if str(HONEST) not in sys.path:
        sys.path.insert(0, str(HONEST))  # where a base finds its neighbours
    path = _workshop() / f"mutant_{mutant.name.replace('-', '_')}.py"
    path.write_text(mutant.source(), encoding="utf-8")
    return resolve(f"{path}:attention")


@cache
def _workshop() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="attnspec-mutants-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def honest_targets() -> tuple[str, ...]:
    """Return the targets of all honest kernels: what is called `attention` or `attention_*` in `tests/honest`."""
    return tuple(f"{path}:{name}" for path in sorted(HONEST.glob("*.py")) for name in _kernels_in(path))


def _kernels_in(path: Path) -> list[str]:
    """Return the names of a file's kernels, without importing it."""
    found: list[str] = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return [name for name in found if name.startswith("attention")]


def honest_name(target: str) -> str:
    """The short name of an honest target: its module, and its attribute where that says more than `attention`."""
    path, _, attribute = target.rpartition(":")
    return Path(path).stem + attribute.removeprefix("attention").replace("_", "-", 1)


def main() -> None:
    """Write the mutant called NAME to FILE, or print it."""
    from mutants import mutant_named

    parser = argparse.ArgumentParser(description="Write a mutant out.")
    parser.add_argument("name")
    parser.add_argument("file", nargs="?", type=Path, help="write it here, else to standard output")
    given = parser.parse_args()
    source = mutant_named(given.name).source()
    if given.file:
        given.file.write_text(source, encoding="utf-8")
    else:
        print(source, end="")


if __name__ == "__main__":
    main()
