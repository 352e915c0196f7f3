"""Mistakes about the window: how many keys it holds, where it lies, and what it does to the causal triangle."""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnspec.conformance.diagnosis import steps as right
from attnspec.conformance.diagnosis.mistake import Mistake, causal_and_windowed, windowed
from attnspec.conformance.diagnosis.steps import NoPrediction, Steps

Window = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, int]], torch.Tensor]


def longer(left: int, after: int) -> Window:
    """A window whose bounded sides are longer by these numbers of keys."""

    def window(row: torch.Tensor, key: torch.Tensor, offset: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        sides = [side if side == -1 else side + more for side, more in zip(size, (left, after), strict=True)]
        if any(side == -1 != given for side, given in zip(sides, size, strict=True)):
            raise NoPrediction  # less than none
        return right.window(row, key, offset, (sides[0], sides[1]))

    return window


def swapped(row: torch.Tensor, key: torch.Tensor, offset: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Left taken for right."""
    return right.window(row, key, offset, (size[1], size[0]))


def without_triangle(kept: torch.Tensor | None, _: torch.Tensor | None, slots: torch.Tensor) -> torch.Tensor:
    """A window, and no triangle."""
    return right.visible(kept, None, slots)


ONE_OFF = {"on the left": (1, 0), "on the right": (0, 1), "on both sides": (1, 1)}

WINDOWS = (
    Mistake("window-dropped", "window_size is ignored", windowed,
            Steps(window=lambda row, key, offset, size: key >= 0 * row)),
    Mistake("window-drops-causal", "is_causal is ignored where there is a window", causal_and_windowed,
            Steps(visible=without_triangle)),
    *(Mistake("window-one-short", "the window is a key too short, as if it counted the row's own", windowed,
              Steps(window=longer(-left, -after)), form) for form, (left, after) in ONE_OFF.items()),
    *(Mistake("window-one-long", "the window is a key too long", windowed,
              Steps(window=longer(left, after)), form) for form, (left, after) in ONE_OFF.items()),
    Mistake("window-other-corner", "the window is aligned to the other corner", windowed,
            Steps(window_diagonal=right.other_diagonal)),
    Mistake("window-swapped", "the left and the right side of the window are swapped", windowed,
            Steps(window=swapped)),
)  # fmt: skip
