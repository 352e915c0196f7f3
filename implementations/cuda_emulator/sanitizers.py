"""The sanitizers of g++ around an emulated kernel: how a process is started for one, and what it found.

A sanitizer's runtime has to be in a process from its start, so `environment` says what a child process is started with.
The runtime writes its reports to a file named by the process, which `findings` reads.
"""

from __future__ import annotations

import ctypes
import os
import re
from functools import cache
from pathlib import Path

from attnspec.implementations.cuda_emulator.places import place_of
from attnspec.implementations.cuda_emulator.toolkit import compiler, output_of
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
FRAME = re.compile(r"^\s+#(?P<depth>\d+) .*\((?P<module>/[^()]+)\+0x(?P<offset>[0-9a-f]+)\)", re.M)
OF_SHARED = "access outside of an array of shared memory (use-after-poison)"  # nothing else is poisoned here
ELSEWHERE = re.compile(r"^(?:\s+Location is|0x[0-9a-f]+ is located|\s+Thread T\d+.* created)", re.M)
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
    if sanitize is None or sanitize not in SANITIZERS:
        sanitizer_flags(sanitize)
    elif not hasattr(ctypes.CDLL(None), SYMBOLS[sanitize]):
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
    stack = "'    #%n %p (%m+%o)'"
    common = f"log_path={log}:halt_on_error=0:exitcode=0:symbolize=0:stack_trace_format={stack}"
    return {
        LOG: str(log),
        "LD_PRELOAD": ":".join(str(_runtime(name)) for name in LIBRARIES[sanitize]),
        "TSAN_OPTIONS": f"{common}:report_thread_leaks=0:report_signal_unsafe=0:ignore_noninstrumented_modules=1",
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:detect_odr_violation=0:handle_segv=0",
        "UBSAN_OPTIONS": f"{common}:print_stacktrace=0",
    }


@cache
def watch_undefined() -> None:
    """Have the runtime for undefined behaviour write to a file of its own: beside that of addresses, whose functions
    stand in front of its own, it would write to the screen."""
    if LOG in os.environ and "libubsan" in os.environ.get("LD_PRELOAD", ""):
        runtime = next(name for name in os.environ["LD_PRELOAD"].split(":") if "libubsan" in name)
        ctypes.CDLL(runtime).__sanitizer_set_report_path(f"{os.environ[LOG]}.undefined".encode())


def findings() -> tuple[str, ...]:
    """Return what the sanitizer has told since the last call, a line each: what it is and where in the kernel."""
    if LOG not in os.environ:
        return ()
    told: list[str] = []
    for name in ("", ".undefined"):
        path = Path(f"{os.environ[LOG]}{name}.{os.getpid()}")
        if path.is_file():
            written = path.read_bytes()
            told += reports(written[read_so_far.get(path, 0) :].decode("utf-8", "replace"))
            read_so_far[path] = len(written)
    return tuple(dict.fromkeys(told))


def reports(text: str) -> list[str]:
    """Return the reports of a log, a line each: the kind of fault and the lines of the kernel that take part."""
    heads = list(HEADLINE.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    return [_line(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _line(head: re.Match[str], body: str) -> str:
    if head["undefined"]:
        return f"{head['undefined']} at {head['place']}"
    kind = (head["thread"] or head["address"]).strip()
    kind = OF_SHARED if kind == "use-after-poison" else kind
    return f"{kind} at {' and '.join(_places(body)) or 'an unknown place'}"


def _places(body: str) -> list[str]:
    """Return the innermost place in the kernel of each stack of a report: of an access, and of what it races with. What
    follows in a report tells where memory and threads come from."""
    found: list[str] = []
    taken = True
    for frame in FRAME.finditer(ELSEWHERE.split(body, maxsplit=1)[0]):
        taken = taken and frame["depth"] != "0"
        place = None if taken else place_of(frame["module"], int(frame["offset"], 16))
        if place is not None:
            found.append(place)
            taken = True
    return list(dict.fromkeys(found))


def _runtime(name: str) -> Path:
    path = Path(output_of([compiler(), f"-print-file-name={name}"]).strip())
    if not path.is_absolute():
        raise InputError(f"g++ has no {name}: install its sanitizers (libgcc of the same version)")
    return path.resolve()
