"""Whether CUDA files can be compiled for the CPU here."""

from __future__ import annotations

import pytest

from attnspec.implementations.cuda_emulator.toolkit import compiler, include_folders
from attnspec.spec.errors import InputError


def missing() -> str:
    """Return what is missing, in one line; nothing where all is there."""
    try:
        compiler(), include_folders()
    except InputError as error:
        return str(error)
    return ""


needs_toolkit = pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")
