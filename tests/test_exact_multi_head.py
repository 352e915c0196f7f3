"""The exact oracle of the multi-head module: ties, one rounding, what it leaves undecided, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnspec.reference.exact import UndecidedError
from attnspec.reference.exact.multi_head import Projections, multi_head
from attnspec.spec.dtypes import FLOAT32, FLOAT64, Format
from attnspec.spec.errors import InputError

ULP = 2.0**-52
ONE = np.ones((1, 1))


def tokens(*rows: float) -> NDArray[np.float64]:
    """Return tokens of one element, (1, length, 1)."""
    return np.array(rows).reshape(1, -1, 1)


def drawn(seed: int = 0) -> tuple[NDArray[np.float64], Projections]:
    """Return tokens (1, 3, 4) and the projections of two heads, normal numbers of a fixed stream."""
    source = np.random.Generator(np.random.PCG64(seed))
    weights = [source.standard_normal((4, 4)) for _ in range(4)]
    biases = [source.standard_normal(4) for _ in range(4)]
    return source.standard_normal((1, 3, 4)), Projections(*weights, *biases)


def rounded(x: NDArray[np.float64], given: Projections, fmt: Format = FLOAT64, **options: Any) -> NDArray[np.float64]:
    """Return the self-attention of two heads."""
    return multi_head(x, x, x, given, **{"num_heads": 2, "rounded_to": fmt} | options)


def test_equal_keys_give_the_mean_with_ties_to_even() -> None:
    given, zero = Projections(ONE, ONE, ONE, ONE), tokens(0.0, 0.0)
    assert multi_head(tokens(3.0), zero, tokens(1.0, 1 + ULP), given, num_heads=1).item() == 1.0
    assert multi_head(tokens(3.0), zero, tokens(1 + ULP, 1 + 2 * ULP), given, num_heads=1).item() == 1 + 2 * ULP


@pytest.mark.parametrize("gap", [60.0, 1e4, 1e9])
def test_a_vanishing_weight_decides_the_direction_of_a_tie(gap: float) -> None:
    given = Projections(ONE, ONE, ONE, ONE, b_o=np.array([ULP / 2]))  # 1 + ULP / 2 is a tie
    for other, expected in ((1.0, 1.0), (2.0, 1 + ULP), (0.0, 1.0)):
        output = multi_head(tokens(1.0), tokens(0.0, -gap), tokens(1.0, other), given, num_heads=1)
        assert output.item() == expected


def test_heads_that_cancel_on_a_tie_are_left_undecided() -> None:
    two = np.ones((2, 1))
    given = Projections(two, two, two, np.array([[1.0, -1.0]]), b_o=np.array([1 + 2.0**-24]))
    x, key, value = tokens(1.0), tokens(0.0, -1.0), tokens(1.0, 2.0)
    assert multi_head(x, key, value, given, num_heads=2).item() == 1 + 2.0**-24
    with pytest.raises(UndecidedError, match="output of batch 0, row 0, column 0"):  # a tie of float32
        multi_head(x, key, value, given, num_heads=2, rounded_to=FLOAT32)


def test_an_empty_row_is_the_bias() -> None:
    x, given = drawn()
    mask = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1]])
    assert rounded(x, given, mask=mask)[0, 1].tolist() == given.b_o.tolist()  # type: ignore[union-attr]
    unbiased = rounded(x, replace(given, b_o=None), mask=mask)
    assert unbiased[0, 1].tolist() == [0.0] * 4


def test_masks_of_every_dtype_say_0_for_masked() -> None:
    x, given = drawn()
    mask = np.array([[1, 1, 0], [0, 1, 0], [1, 0, 1]])
    expected = rounded(x, given, mask=mask)
    for dtype in (np.bool_, np.int8, np.float64):
        assert rounded(x, given, mask=mask.astype(dtype)).tolist() == expected.tolist()
    assert rounded(x, given, is_causal=True).tolist() == rounded(x, given, mask=np.tri(3)).tolist()


def test_results_are_rounded_once() -> None:
    x, given = drawn()
    assert rounded(x, given, FLOAT32).tolist() == rounded(x, given).astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w_q": np.ones((4, 5))}, r"w_q is \(4, 5\) and its tokens have 4 elements"),
        ({"w_q": np.ones((6, 4))}, "projections have widths"),
        ({"w_o": np.ones((4, 3))}, "projections have widths"),
        ({"w_k": np.ones(4)}, "w_k is float64 .*: use 2 axes"),
        ({"b_v": np.ones(3)}, "w_v is .* and its bias has 3 elements"),
        ({"b_o": np.ones(3)}, r"b_o has shape \(3,\): use \(4,\)"),
        ({"w_v": np.full((4, 4), np.inf)}, "w_v holds a NaN or an infinity"),
    ],
)
def test_projections_that_do_not_fit_are_refused(changes: dict[str, NDArray[Any]], message: str) -> None:
    x, given = drawn()
    with pytest.raises(InputError, match=message):
        rounded(x, replace(given, **changes))


def test_calls_that_do_not_fit_are_refused() -> None:
    x, given = drawn()
    with pytest.raises(InputError, match="query holds a NaN or an infinity"):
        multi_head(x * np.nan, x, x, given, num_heads=2)
    with pytest.raises(InputError, match="mask has shape"):
        rounded(x, given, mask=np.ones((2, 2)))
    with pytest.raises(InputError, match="use one batch, one key length"):
        multi_head(x, x, x[:, 1:], given, num_heads=2)
    with pytest.raises(InputError, match="2 query heads over 3 key heads"):
        rounded(x, given, num_kv_heads=3)
