"""RoPE: by hand, in balls, its laws, its gradients, and the faults that each law finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from laws import law_tests

from attnspec.reference.attention import attention
from attnspec.reference.exact.rope import Rope
from attnspec.reference.exact.rope import rope_attention as exact_rope_attention
from attnspec.reference.exact.rope import rotate as exact_rotate
from attnspec.reference.rope import LAYOUTS, frequencies, rope_attention, rope_backward, rotate, rotate_backward
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
Rotation = Callable[..., torch.Tensor]
T = torch.Tensor


def drawn(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def call(q_len: int = 4, k_len: int = 6) -> list[torch.Tensor]:
    """Return query, key and value: head_dim 8, value_dim 3."""
    return drawn((2, 4, q_len, 8), (2, 2, k_len, 8), (2, 2, k_len, 3))


def assert_close(got: torch.Tensor | None, want: torch.Tensor | None, tolerance: float = TOLERANCE) -> None:
    __tracebackhide__ = True
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- by hand


def test_quarter_turns_and_frequencies_by_hand() -> None:
    quarter = torch.tensor([math.pi / 2, math.pi])
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 9.0]).reshape(1, 1, 1, 5)
    turn = partial(rotate, x, torch.tensor([1]), quarter.double())
    assert_close(turn().flatten(), torch.tensor([-3.0, -2.0, 1.0, -4.0, 9.0]).double(), 1e-6)
    assert_close(turn(layout="interleaved").flatten(), torch.tensor([-2.0, 1.0, -3.0, -4.0, 9.0]).double(), 1e-6)
    assert frequencies(4).tolist() == pytest.approx([1.0, 0.01])
    assert frequencies(6, 1000.0).tolist() == pytest.approx([1.0, 0.1, 0.01])


# ---------------------------------------------------------------- laws of a rotation


def turns_by_the_angle_of_its_pair(turn: Rotation) -> None:
    """Against balls: positions of either sign, both layouts, all and some of the elements."""
    positions = [0, 1, -3, 7, 1000]
    (x,) = drawn((5, 8))
    for layout in LAYOUTS:
        for rotary_dim, base in ((8, 10000.0), (4, 500.5)):
            want = exact_rotate(x.numpy(), positions, Rope(Fraction(base), rotary_dim, layout))
            got = turn(x[None, None], torch.tensor(positions), frequencies(rotary_dim, base), layout)
            assert_close(got[0, 0], torch.from_numpy(want), 1e-12)


def leaves_the_rest_and_position_0_alone(turn: Rotation) -> None:
    (x,) = drawn((1, 1, 3, 8))
    got = turn(x, torch.tensor([0, 1, 2]), frequencies(4))
    assert torch.equal(got[..., 4:], x[..., 4:])
    assert torch.equal(got[:, :, 0], x[:, :, 0])


def keeps_lengths_and_adds_up(turn: Rotation) -> None:
    (x,) = drawn((2, 1, 3, 8))
    for layout in LAYOUTS:
        step = partial(turn, inv_freq=frequencies(8), layout=layout)
        once = step(x, torch.tensor([[5, 6, 7], [9, 1, 2]]))
        assert_close(once.norm(dim=-1), x.norm(dim=-1))
        assert_close(step(once, torch.tensor([4, 4, 4])), step(x, torch.tensor([[9, 10, 11], [13, 5, 6]])), 1e-12)


# ---------------------------------------------------------------- laws of attention with a rotation


def attend(
    turn: Rotation, tensors: list[torch.Tensor], first: int | list[int] = 0, keys_from: int = 0, **options: Any
) -> Any:
    """Attention whose queries and keys are rotated by `turn`; queries begin at `first`, keys at `keys_from`."""
    query, key, value = tensors
    start = torch.tensor(first).reshape(-1, 1).expand(query.shape[0], 1)
    layout = options.pop("layout", "half_split")
    q = turn(query, start + torch.arange(query.shape[2]), frequencies(8), layout)
    k = turn(key, keys_from + torch.arange(key.shape[2]), frequencies(8), layout)
    return attention(q, k, value, enable_gqa=True, **options)


def depends_on_distances_alone(turn: Rotation) -> None:
    for layout in LAYOUTS:
        near = attend(turn, call(), 2, layout=layout)
        for shift in (1, 17, 3000):
            far = attend(turn, call(), 2 + shift, shift, layout=layout)
            assert_close(far.output, near.output, 1e-11)
            assert_close(far.lse, near.lse, 1e-11)


def decodes_as_it_prefills(turn: Rotation) -> None:
    query, key, value = call(6, 6)
    whole = attend(turn, [query, key, value], is_causal=True)
    for t in range(6):
        at = [t, 5 - t]  # the two sequences are at different tokens
        one = torch.stack([query[0, :, at[0] : at[0] + 1], query[1, :, at[1] : at[1] + 1]])
        step = attend(turn, [one, key, value], at, key_lengths=torch.tensor(at) + 1)
        assert_close(step.output[:, :, 0], torch.stack([whole.output[0, :, at[0]], whole.output[1, :, at[1]]]))


LAWS = (turns_by_the_angle_of_its_pair, leaves_the_rest_and_position_0_alone, keeps_lengths_and_adds_up)
LAWS += (depends_on_distances_alone, decodes_as_it_prefills)


def layouts_swapped(x: T, positions: T, inv_freq: T, layout: str = "half_split") -> T:
    return rotate(x, positions, inv_freq, LAYOUTS[1 - LAYOUTS.index(layout)])


def interleaved_in_halves_out(x: T, positions: T, inv_freq: T, layout: str = "half_split") -> T:
    if layout == "half_split":
        return rotate(x, positions, inv_freq)
    turned = rotate(x, positions, inv_freq, "interleaved")
    r = 2 * len(inv_freq)
    return torch.cat([turned[..., 0:r:2], turned[..., 1:r:2], turned[..., r:]], -1)


def turns_backwards(x: T, positions: T, *rest: Any, **named: Any) -> T:
    return rotate(x, -positions, *rest, **named)


def position_from_1(x: T, positions: T, *rest: Any, **named: Any) -> T:
    return rotate(x, positions + 1, *rest, **named)


def position_in_the_call(x: T, positions: T, *rest: Any, **named: Any) -> T:
    """The offset of a decode step is dropped."""
    return rotate(x, torch.arange(x.shape[2]), *rest, **named)


def position_of_batch_0(x: T, positions: T, *rest: Any, **named: Any) -> T:
    return rotate(x, positions[0] if positions.ndim == 2 else positions, *rest, **named)


def frequencies_of_head_dim(x: T, positions: T, inv_freq: T, layout: str = "half_split") -> T:
    return rotate(x, positions, inv_freq ** (2 * len(inv_freq) / x.shape[-1]), layout)


def exponent_without_the_2(x: T, positions: T, inv_freq: T, layout: str = "half_split") -> T:
    return rotate(x, positions, inv_freq.sqrt(), layout)


def all_elements(x: T, positions: T, inv_freq: T, layout: str = "half_split") -> T:
    return rotate(x, positions, torch.cat([inv_freq, inv_freq])[: x.shape[-1] // 2], layout)


def no_rotation_of_second_halves(x: T, positions: T, inv_freq: T, layout: str = "half_split") -> T:
    """x1 sin a is lost."""
    out = rotate(x, positions, inv_freq, layout)
    out[..., len(inv_freq) : 2 * len(inv_freq)] = x[..., len(inv_freq) : 2 * len(inv_freq)]
    return out


def queries_one_on(x: T, positions: T, *rest: Any, **named: Any) -> T:
    """A step of one query is rotated by the next position."""
    return rotate(x, positions + (x.shape[2] == 1), *rest, **named)


def keys_not_rotated(x: T, positions: T, *rest: Any, **named: Any) -> T:
    return rotate(x, positions if x.shape[1] == 4 else 0 * positions, *rest, **named)


FAULTS = [
    *(
        (fault, turns_by_the_angle_of_its_pair)
        for fault in (
            layouts_swapped,
            interleaved_in_halves_out,
            turns_backwards,
            position_from_1,
            frequencies_of_head_dim,
            exponent_without_the_2,
        )
    ),
    (all_elements, leaves_the_rest_and_position_0_alone),
    (position_from_1, leaves_the_rest_and_position_0_alone),
    (no_rotation_of_second_halves, keeps_lengths_and_adds_up),
    (position_of_batch_0, decodes_as_it_prefills),
    (keys_not_rotated, depends_on_distances_alone),
    (no_rotation_of_second_halves, depends_on_distances_alone),
    (position_in_the_call, decodes_as_it_prefills),
    (queries_one_on, decodes_as_it_prefills),
]


test_the_reference_keeps_the_law, test_a_fault_breaks_the_law, test_each_law_finds_a_fault = law_tests(
    (rotate,), LAWS, FAULTS
)


def test_the_layouts_differ_by_a_permutation() -> None:
    (x,) = drawn((1, 1, 4, 8))
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    positions, inv_freq = torch.arange(4), frequencies(8)
    halves = rotate(x[..., order], positions, inv_freq)
    assert torch.equal(halves, rotate(x, positions, inv_freq, "interleaved")[..., order])


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_float32_angles_are_within_the_rule_and_bfloat16_ones_are_not(base: float) -> None:
    exponent = torch.arange(0, 128, 2).float() / 128
    angle = 131071.0 * (1.0 / base**exponent)  # in float32, as transformers computes it
    true = 131071.0 * frequencies(128, base)
    assert ((angle.double() - true).abs() <= 2.0**-20 * true).all()
    coarse = 131071.0 * (1.0 / base**exponent).bfloat16().double()
    assert ((coarse - true).abs() > 2.0**-20 * true).sum() > 50


# ---------------------------------------------------------------- truth and gradients


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("rotary_dim", "scale"), [(6, None), (2, -0.5), (4, 0.0)])
def test_the_truth_in_balls(layout: str, rotary_dim: int, scale: float | None) -> None:
    query, key, value = drawn((1, 2, 3, 6), (1, 2, 5, 6), (1, 2, 5, 2))
    true = exact_rope_attention(
        query.numpy(),
        key.numpy(),
        value.numpy(),
        Rope(Fraction(10000), rotary_dim, layout),
        query_offset=2,
        is_causal=True,
        scale=scale,
    )
    got = rope_attention(
        query,
        key,
        value,
        frequencies(rotary_dim),
        layout=layout,
        is_causal=True,
        scale=scale,
        causal_alignment="lower_right",
        query_positions=torch.arange(2, 5),
    )
    assert_close(got.output, torch.from_numpy(true.output))
    assert_close(got.lse, torch.from_numpy(true.lse))


def test_ties_and_rows_without_keys_in_balls() -> None:
    query, key = np.array([[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]]), np.zeros((3, 2))
    key[0] = [0.5, 0.0]
    value = np.array([[1.0], [2.0], [2.0]])
    one = exact_rope_attention(
        query[None, None],
        key[None, None],
        value[None, None],
        Rope(Fraction(7), 2),
        query_offset=-1,
        is_causal=True,
        scale=1.0,
    )
    assert (one.output[0, 0, 0, 0], one.lse[0, 0, 0]) == (0.0, -math.inf)
    assert (one.output[0, 0, 1, 0], one.lse[0, 0, 1]) == (1.0, 0.0)
    weight = math.exp(1.5 * math.cos(1.0))
    assert one.output[0, 0, 2, 0] == pytest.approx((weight + 2) / (weight + 1), rel=1e-15)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_autograd(layout: str) -> None:
    given = [x.requires_grad_() for x in call()]
    lengths, positions = torch.tensor([6, 4]), torch.tensor([[2, 3, 4, 5], [0, 1, 2, 3]])
    options: dict[str, Any] = {"layout": layout, "enable_gqa": True, "is_causal": True, "key_lengths": lengths}
    options |= {"causal_alignment": "lower_right", "query_positions": positions, "scale": 0.6}
    result = rope_attention(*given, frequencies(4), **options)
    assert result.lse is not None
    grad_output, grad_lse = drawn(tuple(result.output.shape), tuple(result.lse.shape), seed=1)
    want = torch.autograd.grad((result.output * grad_output).sum() + (result.lse * grad_lse).sum(), given)
    got = rope_backward(*given, frequencies(4), grad_output, grad_lse=grad_lse, **options)
    for mine, autograd in zip(got[:3], want, strict=True):
        assert_close(mine.detach(), autograd)


def test_the_gradient_of_a_rotation_turns_back() -> None:
    x, grad = drawn((2, 1, 3, 8), (2, 1, 3, 8))
    x.requires_grad_()
    positions = torch.tensor([[1, 5, 9], [0, 2, 4]])
    (want,) = torch.autograd.grad((rotate(x, positions, frequencies(6)) * grad).sum(), x)
    assert_close(rotate_backward(grad, positions, frequencies(6)), want)
    assert (rotate(grad, positions, frequencies(6)) - want).abs().max() > 0.1


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda x: frequencies(3), "rotary_dim is 3: use an even number from 2 on"),
        (lambda x: frequencies(0), "rotary_dim is 0: use an even number from 2 on"),
        (lambda x: frequencies(4, 0.0), "base is 0.0: use a positive finite number"),
        (lambda x: frequencies(4, math.inf), "base is inf: use a positive finite number"),
        (
            lambda x: rotate(x, torch.arange(3), frequencies(10)),
            "inv_freq has shape (5,): use at most 4 pairs, head_dim / 2",
        ),
        (lambda x: rotate(x, torch.arange(4), frequencies(8)), "positions have shape (4,): use (3,) or (2, 3)"),
        (
            lambda x: rotate(x, torch.arange(3.0), frequencies(8)),
            "positions are torch.float32: use torch.int32 or torch.int64",
        ),
        (
            lambda x: rotate(x, torch.arange(3), frequencies(8), "neox"),
            "rope_layout is 'neox': use one of half_split, interleaved",
        ),
        (
            lambda x: rotate(x[0], torch.arange(3), frequencies(8)),
            "x has 3 dimensions: use (batch, heads, length, dim)",
        ),
        (
            lambda x: exact_rotate(x[0, 0].numpy(), [0, 1, 2], Rope(Fraction(0), 4)),
            "base 0 and layout 'half_split': use a positive base, a known layout",
        ),
        (
            lambda x: exact_rotate(x[0, 0].numpy(), [0, 1], Rope(Fraction(2), 4)),
            "2 positions for 3 vectors: use one a vector",
        ),
        (
            lambda x: exact_rotate(x[0, 0].numpy(), [0, 1, 2], Rope(Fraction(2), 10)),
            "rotary_dim is 10: use an even number from 2 to head_dim, 8",
        ),
    ],
)
def test_bad_input_is_told_in_one_line(act: Callable[[torch.Tensor], Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        act(drawn((2, 1, 3, 8))[0])
    assert str(caught.value) == message
