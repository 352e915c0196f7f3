"""The report: a file of JSON lines, a header, one line a case, and a footer. A file with no footer is no report.

Lines are streamed to `FILE.part`, which takes the file's name when the footer is written.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from attnspec.conformance.outcome import CaseResult
from attnspec.spec import schemas
from attnspec.spec.errors import InputError

LONGEST_LINE = 1 << 20  # characters; a failure screen has a few thousand


class ReportWriter:
    """Writes one report; a context manager. Leaving it without `finish` removes what was written.

    Raises InputError where the place cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = Path(f"{path}.part")
        self.file: TextIO | None = None
        check_replaceable(path)
        try:
            self.file = self.part.open("a", encoding="utf-8")
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed when the file is closed, or the process ends
            self.file.truncate(0)
        except BlockingIOError:
            raise InputError(f"report {str(path)!r} is being written by another run") from None
        except OSError as error:
            raise InputError(f"report {str(path)!r} cannot be written: {error.strerror}") from None

    def write(self, line: dict[str, Any]) -> None:
        """Add a header or case line, checked against the schema."""
        assert self.file is not None, "the report is finished"
        schemas.check(line, "report", self.path)
        self.file.write(json.dumps(line, sort_keys=True, allow_nan=False) + "\n")
        self.file.flush()

    def finish(self, footer: dict[str, Any]) -> None:
        """Add the footer and give the file its name."""
        assert self.file is not None, "the report is finished"
        self.write(footer)
        os.fsync(self.file.fileno())
        self.file.close()
        self.file = None
        self.part.replace(self.path)

    def __enter__(self) -> ReportWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
            self.part.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Raise InputError where something stands at the path that is no earlier report: writing must not lose anything
    else."""
    if not path.name or path.is_dir():
        raise InputError(f"report {str(path)!r} cannot be written: it names no file")
    if not path.exists() and not path.is_symlink():
        return
    plain = path.is_file() and not path.is_symlink()
    with path.open("rb") if plain else nullcontext() as file:
        start = file.read(LONGEST_LINE).partition(b"\n")[0] if file else b"?"
    if start and b'"kind": "header"' not in start:
        raise InputError(f"report {str(path)!r} would replace something that is no report: choose another name")


@dataclass(frozen=True)
class Report:
    """A report, read back and checked."""

    header: dict[str, Any]
    results: tuple[CaseResult, ...]
    footer: dict[str, Any]


def read_report(path: Path) -> Report:
    """Return a report. Raises InputError for a file that has no footer, breaks the schema, or counts other than it
    says."""
    lines = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
                lines.append(schemas.parse(text, "report", f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    kinds = [line["kind"] for line in lines]
    if kinds[:1] != ["header"] or kinds[-1:] != ["footer"] or set(kinds[1:-1]) - {"case"}:
        raise InputError(f"{path}: is no whole report: it must be a header, cases and a footer")
    results = tuple(CaseResult.from_json(line) for line in lines[1:-1])
    counts = {name: sum(r.outcome == name for r in results) for name in lines[-1]["counts"]}
    if counts != lines[-1]["counts"]:
        raise InputError(f"{path}: its footer counts {lines[-1]['counts']}, its lines are {counts}")
    return Report(lines[0], results, lines[-1])
