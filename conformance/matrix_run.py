"""The command `matrix`: a validation of each backend, then the matrix of rules and backends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from attnspec.conformance.matrix import markdown, table
from attnspec.conformance.outcome import CaseResult
from attnspec.conformance.selection import Selection
from attnspec.conformance.terminal import Screen, console, grid, summary
from attnspec.conformance.validate import Run, validate
from attnspec.implementations.registry import backend_names, expectations_path, status, unknown
from attnspec.spec.errors import InputError


def run_matrix(names: list[str] | None, level: str, jobs: int, out: Path | None) -> int:
    """Validate the backends, print the matrix, and return the worst exit code.

    names: None is every backend that is available; one that is named and unavailable is an InputError. out: a folder
    for `matrix.md` and a report a backend.
    """
    chosen = _chosen(names)
    selection = Selection(level)
    selection.cases()
    if out is not None:
        _make(out)
    results: dict[str, tuple[CaseResult, ...]] = {}
    verdicts: dict[str, str] = {}
    codes = []
    for name in chosen:
        report = out / f"{name}.jsonl" if out is not None else None
        run = Run(name, selection, jobs=jobs, expectations=expectations_path(name), report=report)
        with Screen(name) as screen:
            validation = validate(run, screen)
        summary(validation)
        results[name], verdicts[name] = validation.results, validation.verdict.statement
        codes.append(validation.verdict.exit_code)
    rows = table(results)
    grid(("rule", *chosen), [(rule, *(str(line[name]) for name in chosen)) for rule, line in rows.items()])
    for name, statement in verdicts.items():
        console().print(f"{name}: {statement}", markup=False)
    if out is not None:
        write_whole(out / "matrix.md", markdown(rows, verdicts))
    return 1 if 1 in codes else max(codes)


def _chosen(names: list[str] | None) -> list[str]:
    """Return the backends to visit; say of the others why they are left out. Raises InputError."""
    known = backend_names()
    for name in names or ():
        if name not in known:
            raise unknown(name)
    state = {name: status(name) for name in names or known}
    missing = {name: reason for name, reason in state.items() if reason != "available"}
    if names and missing:
        raise InputError("; ".join(f"backend {name!r} is {reason}" for name, reason in missing.items()))
    for name, reason in missing.items():
        console(to_stderr=True).print(f"{name}: {reason}", markup=False)
    found = [name for name in state if name not in missing]
    if not found:
        raise InputError("no backend is available here: see `attnspec list backends`")
    return found


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"folder {str(folder)!r} cannot be written: {error.strerror}") from None


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
