"""A script that runs under a sanitizer, whose runtime has to be there when its process starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from attnspec.implementations.cuda_emulator.sanitizers import environment

STARTED = "ATTNSPEC_TESTS_SANITIZED"


def restart_under(sanitize: str, folder: Path) -> None:
    """Start this process anew with the runtime of a sanitizer, unless it has been. folder: of what it logs."""
    if STARTED not in os.environ:
        variables = dict(os.environ) | environment(sanitize, folder / sanitize) | {STARTED: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], variables)
