"""From an address in compiled code to the line of the kernel that it came from."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from attnspec.implementations.cuda_emulator.toolkit import output_of

OWN = Path(__file__).parent


@cache
def place_of(module: str, offset: int) -> str | None:
    """Return `file:line` of an address, the innermost place that is neither the emulator's nor a system header's.

    module: the path of a shared object; offset: from where it is loaded. None where it has no lines or addr2line, which
    comes with g++, is missing.
    """
    tool = shutil.which("addr2line")
    if tool is None or not Path(module).is_file():
        return None
    for line in output_of([tool, "-i", "-e", module, hex(offset)]).splitlines():
        place = line.partition(" ")[0]
        path = Path(place.rpartition(":")[0])
        if path.is_absolute() and path.resolve().parent != OWN.resolve() and not path.is_relative_to("/usr"):
            return place
    return None
