"""The exact oracle against a naive evaluation to 60 digits, and against float64 for a larger head."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import mpmath  # type: ignore[import-untyped]
import numpy as np
from exact_calls import (
    DIGITS,
    Array,
    draw,
    exact_products,
    fraction_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.exact import attention, round_to
from attnspec.spec.dtypes import FORMATS, Format


def naive_attention(
    query: Array, key: Array, value: Array, bias: Array, scale: mpmath.mpf
) -> tuple[list[list[mpmath.mpf]], list[mpmath.mpf]]:
    """Return output (q_len, value_dim) and lse (q_len,) of one head as mpmath numbers; no row may be empty."""
    outputs, lses = [], []
    for row, biases in zip(query, bias.tolist(), strict=True):
        scores = [s * scale + b for s, b in zip(exact_products(row, key), biases, strict=True)]
        weights = [mpmath.exp(s) for s in scores]
        total = mpmath.fsum(weights)
        outputs.append([mpmath.fdot(weights, map(mpmath.mpf, column)) / total for column in value.T.tolist()])
        lses.append(mpmath.log(total))
    return outputs, lses


@dataclass(frozen=True)
class Case:
    """One drawn call: sizes, what it does, and the seed of its numbers. `spread` stretches half of the keys."""

    seed: int
    q_len: int
    k_len: int
    dim: int
    fmt: Format
    spread: float
    scale: float | None
    biased: bool
    is_causal: bool


cases = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    q_len=st.integers(1, 4),
    k_len=st.integers(1, 6),
    dim=st.integers(1, 5),
    fmt=st.sampled_from(list(FORMATS.values())),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    scale=st.sampled_from([None, 0.0, -0.7, 1.25]),
    biased=st.booleans(),
    is_causal=st.booleans(),
)


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(cases)
def test_agrees_with_a_naive_evaluation_to_60_digits(case: Case) -> None:
    slots = (case.q_len, case.k_len)
    query, key, value, bias = draw(case.seed, (case.q_len, case.dim), (case.k_len, case.dim), (case.k_len, 2), slots)
    key[case.k_len // 2 :] *= case.spread
    mask = bias * case.spread if case.biased else None
    heads = (x[None, None] for x in (query, key, value))
    result = attention(*heads, attn_mask=mask, is_causal=case.is_causal, scale=case.scale, rounded_to=case.fmt)

    bias = np.zeros(slots) if mask is None else mask
    bias = np.where(np.tri(*slots, dtype=bool), bias, -np.inf) if case.is_causal else bias
    with mpmath.workdps(DIGITS):
        scale = 1 / mpmath.sqrt(case.dim) if case.scale is None else mpmath.mpf(case.scale)
        outputs, lses = naive_attention(query, key, value, bias, scale)
    expected = [round_to(fraction_of(o), case.fmt) for o in itertools.chain(*outputs)]
    assert result.output.ravel().tolist() == expected
    assert result.lse.ravel().tolist() == [round_to(fraction_of(x), case.fmt) for x in lses]


def test_a_larger_head_stays_within_float64_error() -> None:
    query, key, value = (x.astype(np.float32) for x in draw(17, (1, 1, 40, 64), (1, 1, 50, 64), (1, 1, 50, 16)))
    weights = np.exp(query.astype(np.float64) @ key.astype(np.float64).swapaxes(-1, -2) / 8)
    plain = weights @ value.astype(np.float64) / weights.sum(axis=-1, keepdims=True)
    result = attention(query, key, value)
    np.testing.assert_allclose(result.output, plain, rtol=0, atol=1e-14)
    np.testing.assert_allclose(result.lse, np.log(weights.sum(axis=-1)), rtol=1e-14)
