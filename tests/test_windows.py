"""Windows in the spec, the reference and the exact oracle: by hand, by masks, by autograd, and against each other."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from attnspec.golden.inputs import make_call
from attnspec.golden.regenerate import truth
from attnspec.reference import masks, windows
from attnspec.reference.attention import answer, attention
from attnspec.reference.backward import gradients
from attnspec.reference.exact import attention as exact
from attnspec.reference.flash import flash_attention, flash_backward
from attnspec.reference.tiles import band
from attnspec.spec.capabilities import FEATURES, Capabilities
from attnspec.spec.errors import InputError
from attnspec.spec.exercised import leaves_rows_empty, rules_exercised
from attnspec.spec.problem import Problem
from attnspec.spec.window import Window

UPPER, LOWER = "upper_left", "lower_right"
BY_HAND = [  # q_len, k_len, window, corner, rows of seen keys
    (2, 4, (1, 0), UPPER, "1000 1100"),
    (2, 4, (1, 0), LOWER, "0110 0011"),
    (2, 4, (0, 1), UPPER, "1100 0110"),
    (2, 4, (0, 1), LOWER, "0011 0001"),
    (3, 3, (0, 0), UPPER, "100 010 001"),
    (3, 3, (-1, 0), UPPER, "100 110 111"),
    (3, 3, (0, -1), UPPER, "111 011 001"),
    (3, 3, (-1, -1), LOWER, "111 111 111"),
    (4, 2, (1, 0), UPPER, "10 11 01 00"),
    (4, 2, (1, 0), LOWER, "00 00 10 11"),
    (4, 2, (0, 1), LOWER, "00 10 11 01"),
    (3, 3, (70, 70), UPPER, "111 111 111"),
]


def rows(seen: torch.Tensor) -> str:
    return " ".join("".join(str(int(x)) for x in row) for row in seen)


@pytest.mark.parametrize(("q_len", "k_len", "size", "corner", "seen"), BY_HAND)
def test_a_window_by_hand(q_len: int, k_len: int, size: tuple[int, int], corner: str, seen: str) -> None:
    assert rows(windows.visible(q_len, k_len, size, corner)) == seen


@pytest.mark.parametrize(
    ("size", "corner", "seen"),
    [
        ((3, 2), UPPER, "1000 1100 1110"),
        ((1, 2), UPPER, "1000 1100 0110"),
        ((1, -1), LOWER, "1100 0110 0011"),
        ((0, 3), LOWER, "0100 0010 0001"),
    ],
)
def test_the_triangle_stays(size: tuple[int, int], corner: str, seen: str) -> None:
    found = masks.visible((1, 1, 3, 4), None, True, corner, None, size)
    assert rows(found[0, 0]) == seen
    assert band(size, True) == (size[0], 0)


def test_lengths_move_the_lower_right_corner_alone() -> None:
    lengths = torch.tensor([4, 2, 0], dtype=torch.int32)
    lower = masks.visible((3, 1, 2, 4), None, False, LOWER, lengths, (1, 0))
    assert [rows(x[0]) for x in lower] == ["0110 0011", "1000 1100", "0000 0000"]
    upper = masks.visible((3, 1, 2, 4), None, False, UPPER, lengths, (1, 1))
    assert [rows(x[0]) for x in upper] == ["1100 1110", "1100 1100", "0000 0000"]


def test_the_output_of_a_window_is_the_mean_of_its_keys() -> None:
    """Equal scores, values 1 to 4: with (1, 0) at the upper left rows see 1, 1-2, 2-3, and nothing."""
    query, value = torch.zeros(1, 1, 6, 2), torch.arange(1.0, 5.0)[None, None, :, None]
    found = attention(query, torch.zeros(1, 1, 4, 2), value, window_size=(1, 0))
    assert found.output.flatten().tolist() == [1.0, 1.5, 2.5, 3.5, 4.0, 0.0]
    assert found.lse is not None
    assert found.lse.exp().flatten().tolist() == pytest.approx([1, 2, 2, 2, 1, 0])


CALLS = [
    Problem.parse(f"b=2/hq=4/hkv=2/q={q}/k={k}/d=8/dtype=float64/grad=lse/window={size}{more}")
    for (q, k), size, more in product(
        ((9, 17), (17, 9), (1, 9)),
        ("3.0", "0.2", "-1.1", "2.-1"),
        ("", ".lower_right", "/causal", "/causal=lower_right/lengths=zero", "/mask=float.qk.random"),
    )
]


@pytest.mark.parametrize("problem", CALLS, ids=str)
def test_reference_tiles_and_exact_oracle_agree(problem: Problem) -> None:
    call = make_call(problem)
    true = {name: torch.from_numpy(x) for name, x in truth(call, problem.corner).items()}
    found, back = answer(call, problem.corner), gradients(call, problem.corner)
    assert found.lse is not None
    options: dict[str, Any] = call.options() | {"causal_alignment": problem.corner, "tile": (4, 3)}
    tiled = flash_attention(call.query, call.key, call.value, **options)
    assert tiled.lse is not None
    assert call.grad_output is not None
    tiled_back = flash_backward(
        call.query, call.key, call.value, tiled.output, tiled.lse, call.grad_output, grad_lse=call.grad_lse, **options
    )
    for result, gradient in ((found, back), (tiled, tiled_back)):
        torch.testing.assert_close(result.output, true["output"], rtol=0, atol=1e-13)
        torch.testing.assert_close(result.lse, true["lse"], rtol=1e-13, atol=1e-13)
        for name in ("query", "key", "value"):
            torch.testing.assert_close(getattr(gradient, name), true[f"grad_{name}"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("problem", CALLS[::7], ids=str)
def test_gradients_are_those_of_autograd(problem: Problem) -> None:
    call = make_call(problem)
    leaves = {name: getattr(call, name).clone().requires_grad_() for name in ("query", "key", "value")}
    found = answer(call.but(**leaves), problem.corner)
    assert found.lse is not None
    seeing = found.lse.isfinite()
    assert call.grad_lse is not None
    loss = (found.output * call.grad_output).sum() + (found.lse[seeing] * call.grad_lse[seeing]).sum()
    expected = torch.autograd.grad(loss, list(leaves.values()))
    back = gradients(call, problem.corner)
    for gradient, name in zip(expected, leaves, strict=True):
        torch.testing.assert_close(getattr(back, name), gradient.nan_to_num(0.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", [(-2, 0), (0, -2), (1,), (1, 2, 3), (1.5, 0), 3, (True, 0)])
def test_an_impossible_window_is_refused_in_one_line(wrong: Any) -> None:
    x = torch.ones(1, 1, 4, 4)
    with pytest.raises(InputError, match=r"window_size is .*: use \(left, right\)"):
        attention(x, x, x, window_size=wrong)
    with pytest.raises(InputError, match="window_size is"):
        flash_attention(x, x, x, window_size=wrong)


@pytest.mark.parametrize("wrong", [(-2, 0), (0, -2), (1,), (1.5, 0), 3])
def test_the_exact_oracle_refuses_it_too(wrong: Any) -> None:
    x = torch.ones(1, 1, 4, 4).numpy()
    with pytest.raises(InputError, match="window_size is"):
        exact(x, x, x, window_size=wrong)


def test_a_window_writes_its_corner_only_where_no_triangle_does() -> None:
    bare = Problem.parse("q=5/k=9/d=8/window=3.0.lower_right")
    assert (bare.corner, bare.window) == (LOWER, Window(3, 0, LOWER))
    assert str(bare.but(causal=UPPER)) == "q=5/k=9/d=8/dtype=float32/causal/window=3.0"
    assert str(bare.but(causal=LOWER).but(causal=None)) == "q=5/k=9/d=8/dtype=float32/window=3.0.lower_right"
    assert Problem.parse("q=5/k=9/d=8/window=3.0.lower_right/causal=lower_right").window == Window(3, 0)
    assert bare.at_corner(UPPER).corner == UPPER
    assert Problem.parse("q=5/k=9/d=8").at_corner(LOWER).corner == UPPER


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("window=3", "use left.right"),
        ("window=-2.0", "use left.right"),
        ("window=3.0.middle", "use left.right"),
        ("window=99999.0", "window is"),
        ("window=3.0.lower_right/causal", "use one corner"),
    ],
)
def test_a_window_that_cannot_be_read_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Problem.parse(f"q=5/k=9/d=8/{text}")


def test_a_window_is_claimed_by_name_and_has_a_corner() -> None:
    problem = Problem.parse("q=5/k=9/d=8/window=3.0.lower_right")
    assert Capabilities().lacks(problem) == "window_size (a window of keys around the diagonal) is not declared"
    declared = Capabilities(features=tuple(FEATURES))
    assert declared.lacks(problem) == "the case has causal_alignment lower_right, declared upper_left"
    assert declared.lacks(problem.at_corner(UPPER)) is None
    assert Capabilities(features=tuple(FEATURES), causal_alignment=LOWER).lacks(problem) is None


@pytest.mark.parametrize(
    ("text", "empty"),
    [
        ("q=9/k=5/d=8/window=3.0", True),
        ("q=8/k=5/d=8/window=3.0", False),
        ("q=9/k=5/d=8/window=0.3.lower_right", True),
        ("q=8/k=5/d=8/window=0.3.lower_right", False),
        ("q=6/k=5/d=8/causal=lower_right/window=0.3", True),
        ("q=9/k=5/d=8/window=-1.0", False),
    ],
)
def test_which_windows_leave_a_row_empty(text: str, empty: bool) -> None:
    problem = Problem.parse(text)
    seen = masks.visible((1, 1, problem.q_len, 5), None, problem.causal is not None, problem.corner, None,
                         problem.window and problem.window.size)  # fmt: skip
    assert leaves_rows_empty(problem) is empty
    assert bool((~seen.any(-1)).any()) is empty
    assert ("mask.fully-masked-row" in rules_exercised(problem)) is empty
