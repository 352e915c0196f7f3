"""FlashAttention in Triton, forward and backward, to be read beside chapter "FlashAttention".

`forward.py`, `backward.py` and `merge.py` hold the kernels, `tiles.py` the steps that they share, `passes.py` their
launches, `backend.py` the backend, `packed.py` and `paged.py` attention over packed sequences and over pages.
Without a GPU they run in Triton's interpreter; `interpreter.py` says what that needs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnspec.spec.errors import Unavailable

if TYPE_CHECKING:
    from attnspec.implementations.triton_flash.backend import TritonFlash


def upper_left() -> TritonFlash:
    """Return the backend with its causal diagonal at the upper left. Raises Unavailable, with the reason, where Triton
    is missing or cannot run here."""
    prepare()
    from attnspec.implementations.triton_flash.backend import TritonFlash

    return TritonFlash()


def lower_right() -> TritonFlash:
    """Return the backend with its causal diagonal at the lower right, as decoding has it. Raises Unavailable."""
    prepare()
    from attnspec.implementations.triton_flash.backend import TritonFlash

    return TritonFlash("triton_flash.lower_right", "lower_right")


def prepare() -> None:
    """Have Triton imported: compiling where there is a CUDA GPU, interpreting where there is none.

    The interpreter has to be chosen before triton is imported for the first time, by TRITON_INTERPRET. Raises
    Unavailable where Triton is missing, too old, or was imported before without the interpreter and there is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        import triton.language as language
        from triton import knobs
        from triton.runtime.interpreter import InterpretedFunction
    except ImportError as error:
        raise Unavailable(f"needs triton 3.7 or newer, the extra attnspec[triton] ({error})") from None
    if knobs.runtime.interpret != isinstance(language.sum, InterpretedFunction):
        raise Unavailable("triton was imported before TRITON_INTERPRET was set: set TRITON_INTERPRET=1 for the process")
