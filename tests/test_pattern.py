"""The words for where the wrong elements are."""

from __future__ import annotations

import math

import pytest
import torch

from attnspec.conformance.pattern import describe, everywhere, ranges

AXES = ("head", "row")


def wrong_at(*places: object) -> torch.Tensor:
    """A bool tensor of 8 heads and 10 rows, True at these places."""
    wrong = torch.zeros(8, 10, dtype=torch.bool)
    for place in places:
        wrong[place] = True
    return wrong


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ((), "none"),
        ((...,), "every element"),
        ((4,), "all with head 4"),
        ((slice(4, 8),), "all with head >= 4"),
        ((slice(2, 5),), "all with head 2-4"),
        (((slice(None), slice(7, None)),), "all with row >= 7"),
        (((slice(None), slice(0, None, 2)),), "all with row even"),
        (((slice(None), slice(1, None, 2)),), "all with row odd"),
        (((0, 3),), "all with head 0, row 3"),
        (((0, 3), (1, 4)), "some with head 0-1, row 3-4"),
        (((slice(2, 4), slice(5, 7)),), "all with head 2-3, row 5-6"),
        ((0, (slice(None), 0)), "no axis stands out"),
    ],
)
def test_a_pattern_is_told_in_words(places: tuple[object, ...], words: str) -> None:
    assert describe(wrong_at(*places), AXES) == words


def test_one_axis_is_enough() -> None:
    assert describe(torch.tensor([False, True, True]), ("row",)) == "all with row >= 1"


def test_an_axis_of_one_index_is_left_out() -> None:
    assert describe(torch.tensor([[False, True, False]]), AXES) == "all with row 1"


@pytest.mark.parametrize(
    ("indices", "size", "words"),
    [
        ([], 9, ""),
        ([0], 9, "0"),
        ([8], 9, "8"),
        ([0], 1, "0"),
        ([7, 8], 9, ">= 7"),
        ([6, 7], 9, "6-7"),
        ([0, 1, 2], 3, "0-2"),
        ([0, 2, 4, 6, 8], 9, "even"),
        ([1, 3, 5, 7], 9, "odd"),
        ([4, 6, 8], 9, "4, 6, 8"),
        ([0, 8], 9, "0, 8"),
        ([0, 3, 4, 5, 8], 9, "0, 3-5, 8"),
        ([0, 2, 5, 7, 10, 12, 15], 20, "0, 2, 5, 7, 10 and 2 more runs"),
    ],
)
def test_indices_are_told_in_short(indices: list[int], size: int, words: str) -> None:
    assert ranges(indices, size) == words


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ([0.0, -0.0], "0 everywhere"),
        ([math.nan, math.nan], "NaN everywhere"),
        ([0.0, math.nan], ""),
        ([0.0, 1.0], ""),
        ([0.0], ""),
        ([], ""),
    ],
)
def test_a_tensor_of_one_number_is_told(got: list[float], words: str) -> None:
    assert everywhere(torch.tensor(got)) == words
