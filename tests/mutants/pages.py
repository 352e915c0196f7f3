"""A generated page of `docs/`: printed, or written to a file that the command line names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path


def main(doc: str | None, page: Callable[[], Iterable[str]]) -> None:
    """Read the arguments, then print the page, or write it to FILE; doc: of the script, whose first line is its help.

    page: gives the lines, and is called after the arguments are read.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("file", nargs="?", type=Path, help="write the page here, else to standard output")
    file = parser.parse_args().file
    text = "\n".join(page()).rstrip() + "\n"
    if file:
        file.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
