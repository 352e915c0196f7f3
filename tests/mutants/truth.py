"""Truth once for all: hundreds of kernels in one process are judged by the same vectors, answers and budgets.

They depend on the call alone, and take ten times as long as the kernels. Within `remembered()` the suite computes each
once; what a kernel may change is handed out as a copy.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import torch

from attnspec.conformance.budget import error_budget
from attnspec.conformance.catalogue import CHECKS
from attnspec.conformance.gradient_budget import gradient_budget
from attnspec.golden.inputs import make_call
from attnspec.golden.store import load
from attnspec.reference.attention import answer
from attnspec.reference.backward import gradients
from attnspec.spec.call import Call

Kept = dict[Hashable, Any]
SHELVES: dict[str, Kept] = {
    name: {} for name in ("budgets", "gradient budgets", "answers", "gradients", "vectors", "calls")
}
LAST_SHIFT = [0]


def forget_other(shift: int) -> None:
    """Forget what was computed for another shift of the seeds: all of them together would not fit into memory."""
    if [shift] != LAST_SHIFT:
        LAST_SHIFT[:] = [shift]
        for shelf in SHELVES.values():
            shelf.clear()


@contextmanager
def remembered() -> Iterator[None]:
    """Let the checks look up what they have computed before in this process."""
    replacements = {
        error_budget: by_call(error_budget, SHELVES["budgets"]),
        gradient_budget: by_call(gradient_budget, SHELVES["gradient budgets"]),
        answer: by_call(answer, SHELVES["answers"]),
        gradients: by_call(gradients, SHELVES["gradients"]),
        load: by_name(load, SHELVES["vectors"]),
        make_call: by_name(make_call, SHELVES["calls"]),
    }
    for check in CHECKS:
        _ = check.body  # imports its module, whose names are to be replaced
    with ExitStack() as stack:
        for module in [m for name, m in sys.modules.items() if name.startswith("attnspec.conformance")]:
            for name, value in list(vars(module).items()):
                if callable(value) and isinstance(value, Hashable) and value in replacements:
                    stack.enter_context(patch.object(module, name, replacements[value]))
        yield


def by_call(function: Callable[..., Any], kept: Kept) -> Callable[..., Any]:
    """A function of a call and options, computed once for equal contents."""

    def looked_up(call: Call, *args: Any, **options: Hashable) -> Any:
        key = (contents(call), tuple(map(content, args)), tuple(sorted(options.items())))
        if key not in kept:
            kept[key] = function(call, *args, **options)
        return kept[key]

    return looked_up


def by_name(function: Callable[[Any], Any], kept: Kept) -> Callable[[Any], Any]:
    """A function of a name or a problem, computed once; a copy for each caller."""

    def looked_up(name: Hashable) -> Any:
        if name not in kept:
            kept[name] = function(name)
        return deepcopy(kept[name])

    return looked_up


def contents(call: Call) -> Hashable:
    """Return what tells calls apart: the bits of the tensors, and the options."""
    return tuple((f.name, content(getattr(call, f.name))) for f in fields(call))


def content(x: Any) -> Hashable:
    """Return the bits of a tensor, or the value of anything else."""
    return bits(x) if isinstance(x, torch.Tensor) else (type(x), x)


def bits(x: torch.Tensor) -> Hashable:
    """Return a tensor's shape, dtype and a digest of its elements."""
    flat = x.detach().cpu().contiguous().view(-1)
    return tuple(x.shape), x.dtype, hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).digest()
