"""The memory that tensor operations hold, counted as torch dispatches them, and how it grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):
    """Inside the block, `peak` is the most bytes that storages made there held at one time.

    Storages made before count nothing, views nothing again, and a storage leaves the sum when its last tensor does.
    Scratch memory inside one operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = WeakIdKeyDictionary()  # storage: bytes
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tensors((args, kwargs)):
            self.live.setdefault(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in tensors(result):
            self.live.setdefault(tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        self.peak = max(self.peak, sum(self.live.values()))
        return result


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in nested arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def exponent(lengths: Sequence[int], peaks: Sequence[int]) -> float:
    """Return e of peak = a + c * L^e for lengths that double: the steps between the peaks grow by 2^e each time, fitted
    by least squares to their logarithms."""
    xs = [math.log(length) for length in lengths[:-1]]
    ys = [math.log(after - before) for before, after in pairwise(peaks)]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - mean_x) ** 2 for x in xs)
