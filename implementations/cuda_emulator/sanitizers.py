"""The sanitizers of g++ around an emulated kernel: how a process is started for one, and what it found.

A sanitizer's runtime has to be in a process from its start, so `environment` says what a child process is started with.
The runtime writes its reports to a file named by the process, which `findings` reads.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

from attnspec.implementations.cuda_emulator.toolkit import compiler
from attnspec.spec.errors import InputError

SANITIZERS = ("thread", "address")
LOG = "ATTNSPEC_SANITIZER_LOG"
FLAGS = {
    "thread": ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=thread"),
    "address": ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fsanitize-recover=all"),
}
LIBRARIES = {"thread": ("libtsan.so",), "address": ("libasan.so", "libubsan.so")}
SYMBOLS = {"thread": "__tsan_init", "address": "__asan_init"}
HEADLINE = re.compile(
    r"(?:WARNING: ThreadSanitizer: (?P<thread>[^\n(]+?) \(pid)|(?:ERROR: AddressSanitizer: (?P<address>[\w-]+))"
    r"|^(?P<place>\S+?:\d+):\d+: runtime error: (?P<undefined>[^\n]+)",
    re.M,
)
FRAME = re.compile(r"^\s+#(?P<depth>\d+) .*?(?P<place>[^\s()]+:\d+)(?: \(|\s*$)", re.M)
OWN = str(Path(__file__).parent)
read_so_far: dict[Path, int] = {}


def sanitizer_flags(sanitize: str | None) -> tuple[str, ...]:
    """Return the compiler's options of a sanitizer, none for None. Raises InputError for an unknown one."""
    if sanitize is None:
        return ()
    if sanitize not in SANITIZERS:
        raise InputError(f"sanitizer {sanitize!r}: use {' or '.join(SANITIZERS)}")
    return FLAGS[sanitize]


def check_loaded(sanitize: str | None) -> None:
    """Raise InputError unless the sanitizer's runtime is in this process from its start. None needs none."""
    if sanitizer_flags(sanitize) and sanitize is not None and not hasattr(ctypes.CDLL(None), SYMBOLS[sanitize]):
        raise InputError(
            f"the runtime of the {sanitize} sanitizer is not in this process: use attnspec validate --sanitize "
            f"{sanitize}, or start Python with attnspec.implementations.cuda_emulator.sanitizers.environment"
        )


def environment(sanitize: str, log: Path) -> dict[str, str]:
    """Return the variables that a process which runs kernels under a sanitizer is started with.

    log: where the runtime writes its reports, to `log.<process id>`. The process goes on after a report. It must be the
    interpreter itself, no shell script. Raises InputError for an unknown sanitizer, and where g++ has no runtime of it.
    """
    sanitizer_flags(sanitize)
    common = f"log_path={log}:halt_on_error=0:exitcode=0"
    return {
        LOG: str(log),
        "LD_PRELOAD": ":".join(str(_runtime(name)) for name in LIBRARIES[sanitize]),
        "TSAN_OPTIONS": f"{common}:report_thread_leaks=0:report_signal_unsafe=0:ignore_noninstrumented_modules=1",
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:detect_odr_violation=0:handle_segv=0",
        "UBSAN_OPTIONS": f"{common}:print_stacktrace=0",
    }


def findings() -> tuple[str, ...]:
    """Return what the sanitizer has told since the last call, a line each: what it is and where in the kernel."""
    named = os.environ.get(LOG)
    if not named:
        return ()
    path = Path(f"{named}.{os.getpid()}")
    if not path.is_file():
        return ()
    start = read_so_far.get(path, 0)
    text = path.read_bytes()[start:].decode("utf-8", "replace")
    read_so_far[path] = start + len(text.encode())
    return tuple(dict.fromkeys(reports(text)))


def reports(text: str) -> list[str]:
    """Return the reports of a log, a line each: the kind of fault and the lines of the kernel that take part."""
    heads = list(HEADLINE.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [_line(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _line(head: re.Match[str], body: str) -> str:
    if head["undefined"]:
        return f"{head['undefined']} at {head['place']}"
    kind = (head["thread"] or head["address"]).strip()
    return f"{kind} at {' and '.join(_places(body)) or 'an unknown place'}"


def _places(body: str) -> list[str]:
    """Return the innermost place in the kernel of each stack of a report, at most two."""
    found: list[str] = []
    taken = True
    for frame in FRAME.finditer(body):
        if frame["depth"] == "0":
            taken = False
        if not taken and not frame["place"].startswith(OWN) and "/" in frame["place"]:
            found.append(frame["place"])
            taken = True
    return list(dict.fromkeys(found))[:2]


def _runtime(name: str) -> Path:
    told = subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=False).stdout
    path = Path(told.strip())
    if not path.is_absolute():
        raise InputError(f"g++ has no {name}: install its sanitizers (libgcc of the same version)")
    return path.resolve()
