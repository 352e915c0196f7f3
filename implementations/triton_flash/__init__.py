"""FlashAttention in Triton, forward and backward, to be read beside chapter "FlashAttention".

`forward.py`, `backward.py` and `merge.py` hold the kernels, `tiles.py` the steps that they share, `passes.py` their
launches, `backend.py` the backend, `packed.py` and `paged.py` attention over packed sequences and over pages.
Where there is no CUDA GPU, Triton's interpreter runs them; `interpreter.py` says what that needs. TRITON_INTERPRET has
to be set before triton is imported for the first time: this package sets it, unless the caller has.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from attnspec.spec.errors import Unavailable

if TYPE_CHECKING:
    from attnspec.implementations.triton_flash.backend import TritonFlash

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def upper_left() -> TritonFlash:
    """Return the backend with its causal diagonal at the upper left. Raises Unavailable, with the reason, where Triton
    is missing or cannot run here."""
    need_triton()
    from attnspec.implementations.triton_flash.backend import TritonFlash

    return TritonFlash()


def lower_right() -> TritonFlash:
    """Return the backend with its causal diagonal at the lower right, as decoding has it. Raises Unavailable."""
    need_triton()
    from attnspec.implementations.triton_flash.backend import TritonFlash

    return TritonFlash("triton_flash.lower_right", "lower_right")


def need_triton() -> None:
    """Raise Unavailable where Triton is missing or too old, where it was imported before the interpreter was chosen,
    and where it would compile and there is no GPU."""
    try:
        import triton.language as language
        from triton import knobs
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError as error:
        raise Unavailable(f"needs triton 3.7 or newer, the extra attnspec[triton] ({error})") from None
    if knobs.runtime.interpret != isinstance(language.sum, InterpretedFunction):
        raise Unavailable("triton was imported before TRITON_INTERPRET was set: set TRITON_INTERPRET=1 for the process")
    if not knobs.runtime.interpret and not torch.cuda.is_available():
        raise Unavailable("needs a CUDA GPU, or TRITON_INTERPRET=1 for Triton's interpreter")
