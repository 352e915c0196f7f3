"""The inputs of a problem: a fixed stream, each tensor on its own, rounded once."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest
import torch

from attnspec.golden.cases import CASES
from attnspec.golden.inputs import Array, Source, make_call, round_once
from attnspec.golden.store import load_all
from attnspec.spec.call import Call
from attnspec.spec.dtypes import BFLOAT16, FLOAT16, FLOAT32, Format
from attnspec.spec.problem import MASK_CONTENTS, Problem

TENSORS = ("query", "key", "value", "attn_mask")
STREAM = "bf03718815fc0254d4e24f0b100bd6fa3b0e1c3cb886bafc7a7249dd6c66d457"
INPUTS = "acec5474a359386630d9253e27bd8e4e491ae030b1dfee74cb5dc104a3f7b6b8"


def digest(*arrays: object) -> str:
    """Return the SHA-256 of the arrays' bytes."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def test_the_stream_never_changes() -> None:
    draw = Source(0)
    assert digest(draw.normal("query", (3, 5)), draw.uniform("value", (7,))) == STREAM


def test_the_inputs_of_a_problem_never_change() -> None:
    call = make_call(
        Problem.parse("b=2/hq=4/hkv=2/q=5/k=7/d=3/mask=float.bhqk.empty_rows/values=spiky/scores=8/seed=3")
    )
    assert call.attn_mask is not None
    assert digest(call.query, call.key, call.value, call.attn_mask) == INPUTS


def lengths(content: str, k_len: int = 9) -> list[int]:
    drawn = make_call(Problem(1, k_len, 1, batch=99, key_lengths=content)).key_lengths
    assert drawn is not None
    found: list[int] = drawn.tolist()
    return found


def test_lengths_are_what_their_content_says() -> None:
    ragged, zero = lengths("ragged"), lengths("zero")
    assert (set(ragged), ragged[-1]) == (set(range(1, 10)), 9)
    assert zero == [0, *ragged[1:]]
    assert set(lengths("short")) == set(range(1, 9))
    assert set(lengths("short", k_len=1)) == set(lengths("full", k_len=1)) == {1}
    assert set(lengths("full")) == {9}


def test_stored_inputs_are_those_of_their_problem() -> None:
    goldens = list(load_all())
    assert len(goldens) == len(CASES)
    for golden in goldens:
        made = make_call(golden.case.problem)
        assert made.options().keys() == golden.call.options().keys()
        for name in TENSORS:
            assert same(getattr(made, name), getattr(golden.call, name)), f"{golden.case.name}: {name}"


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and digest(bits(a)) == digest(bits(b))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


@pytest.mark.parametrize(
    ("change", "unchanged"),
    [
        ({"k_len": 9}, ("query",)),
        ({"q_len": 9}, ("key", "value")),
        ({"value_dim": 9}, ("query", "key", "attn_mask")),
        ({"mask": None}, ("query", "key", "value")),
        ({"values": "spiky"}, ("query", "key", "attn_mask")),
        ({"causal": "upper_left", "scale": 3.0}, TENSORS),
        ({"q_heads": 4}, ("key", "value")),
    ],
)
def test_a_tensor_does_not_depend_on_another(change: dict[str, object], unchanged: tuple[str, ...]) -> None:
    problem = Problem.parse("b=2/hq=2/q=4/k=5/d=3/mask=float.qk.random/seed=11")
    first, second = make_call(problem), make_call(problem.but(**change, kv_heads=problem.kv_heads))
    for name in unchanged:
        assert same(getattr(first, name), getattr(second, name)), name


def test_seeds_differ() -> None:
    problem = Problem.parse("q=4/k=5/d=3")
    calls: list[Call] = [make_call(problem.but(seed=seed)) for seed in range(20)]
    assert len({digest(call.query) for call in calls}) == 20


def test_normal_numbers_are_normal() -> None:
    drawn = Source(5).normal("query", (200_000,))
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.var() - 1) < 0.01
    assert 4 < np.abs(drawn).max() <= 6


@pytest.mark.parametrize("content", MASK_CONTENTS)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_mask_may_have_no_rows_or_keys(kind: str, content: str) -> None:
    for text in ("q=0/k=3/d=2", "q=3/k=0/d=2"):
        mask = make_call(Problem.parse(f"{text}/mask={kind}.bhqk.{content}")).attn_mask
        assert mask is not None
        assert mask.numel() == 0


# ---------------------------------------------------------------- one rounding


def hard_numbers(fmt: Format) -> Array:
    """Return float64 numbers that are hard to round: midpoints and their neighbours, subnormals, overflow, random."""
    draw = Source(9)
    exponents = np.floor(draw.uniform("powers", (4000,)) * (fmt.emax - fmt.emin + 40)) + fmt.emin - 30
    powers = np.ldexp(1.0, exponents.astype(np.int64))
    steps = np.floor(draw.uniform("steps", (4000,)) * 2**fmt.precision) + 0.5
    middles = (1 + steps * 2.0 ** (1 - fmt.precision)) * powers
    edges = np.array(
        [0.0, fmt.largest, fmt.smallest_normal, fmt.smallest_subnormal, fmt.smallest_subnormal / 2, np.inf]
    )
    edges = np.concatenate(
        [edges, edges * (1 + 2.0**-40), fmt.largest * (1 + fmt.unit_roundoff * np.arange(0, 3, 0.25))]
    )
    x = np.concatenate([middles, np.nextafter(middles, np.inf), np.nextafter(middles, 0), edges])
    return np.concatenate([x, -x, draw.normal("query", (4000,)) * powers])


@pytest.mark.parametrize(("fmt", "dtype"), [(FLOAT32, np.float32), (FLOAT16, np.float16)])
def test_rounding_agrees_with_numpy(fmt: Format, dtype: type[np.floating]) -> None:
    x = hard_numbers(fmt)
    with np.errstate(over="ignore", under="ignore"):
        right = x.astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(round_once(x, fmt), right)
    np.testing.assert_array_equal(np.signbit(round_once(x, fmt)), np.signbit(right))


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT16], ids=lambda fmt: fmt.name)
def test_rounding_agrees_with_fractions(fmt: Format) -> None:
    x = hard_numbers(fmt)
    x = x[np.isfinite(x)]
    np.testing.assert_array_equal(round_once(x, fmt), [nearest(Fraction(number), fmt) for number in x.tolist()])


def nearest(x: Fraction, fmt: Format) -> float:
    """Return x rounded to nearest, ties to even, by the definition (IEEE 754-2019, 4.3.1)."""
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    if abs(x) < Fraction(2) ** exponent:
        exponent -= 1  # 2^exponent <= abs(x) < 2^(exponent + 1)
    unit = Fraction(2) ** (max(exponent, fmt.emin) - fmt.precision + 1)
    rounded = round(x / unit) * unit  # Python rounds a half to even
    if abs(rounded) > Fraction(fmt.largest):
        return float("inf") if x > 0 else float("-inf")
    return float(rounded)


def test_bfloat16_is_rounded_once() -> None:
    x = 1 + 2.0**-8 + 2.0**-30  # by way of float32 it would become the midpoint 1 + 2^-8, and then 1
    assert round_once(np.array([x]), BFLOAT16)[0] == 1 + 2.0**-7
