"""The exact oracle of dropout with a given mask and of merging, against the oracle of attention, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnspec.reference.exact import attention
from attnspec.reference.exact.backward import backward
from attnspec.reference.exact.dropout import dropped_attention
from attnspec.reference.exact.merge import merge
from attnspec.spec.dtypes import FLOAT16
from attnspec.spec.errors import InputError

SHAPE = (1, 2, 4, 6)  # (batch, heads, q_len, k_len)


@pytest.fixture
def drawn() -> dict[str, Any]:
    """Query, key, value, a mask of kept weights, and what flows back."""
    rng = np.random.default_rng(3)
    tensors = {name: rng.normal(size=(1, 2, length, 5)) for name, length in (("query", 4), ("key", 6), ("value", 6))}
    return tensors | {"keep": rng.random(SHAPE) > 0.4, "flow": rng.normal(size=(1, 2, 4, 5))}


def three(drawn: dict[str, Any]) -> list[Any]:
    return [drawn[name] for name in ("query", "key", "value")]


def test_dropout_of_a_half_is_attention_over_doubled_and_cleared_values(drawn: dict[str, Any]) -> None:
    query, key, value = three(drawn)
    found = dropped_attention(query, key, value, dropout_p=0.5, keep=drawn["keep"], is_causal=True)
    plain = attention(query, key, value, is_causal=True)
    np.testing.assert_array_equal(found.lse, plain.lse)
    for head in range(2):
        for row in range(4):
            kept = np.where(drawn["keep"][:, head, row, :, None], 2 * value[:, head], 0.0)  # (1, k_len, value_dim)
            seen = np.arange(6) <= row
            alone = attention(query[:, head, None, row, None], key[:, head, None], kept[:, None], attn_mask=seen[None])
            np.testing.assert_array_equal(found.output[0, head, row], alone.output[0, 0, 0])


def test_nothing_dropped_is_attention_and_its_gradients(drawn: dict[str, Any]) -> None:
    everything = np.ones(SHAPE, np.bool_)
    plain, kept = attention(*three(drawn)), dropped_attention(*three(drawn), dropout_p=0.0, keep=everything)
    np.testing.assert_array_equal(kept.output, plain.output)
    without = backward(*three(drawn), drawn["flow"])
    found = backward(*three(drawn), drawn["flow"], dropout_p=0.0, keep=everything)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(without, name))


def test_a_factor_of_two_doubles_every_gradient(drawn: dict[str, Any]) -> None:
    once = backward(*three(drawn), drawn["flow"], dropout_p=0.0, keep=drawn["keep"])
    twice = backward(*three(drawn), drawn["flow"], dropout_p=0.5, keep=drawn["keep"])
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(twice, name), 2 * getattr(once, name))


def test_a_third_of_one_key_is_rounded_once() -> None:
    one = np.ones((1, 1, 1, 1))
    found = dropped_attention(one, one, one, dropout_p=0.25, keep=np.ones((1, 1, 1, 1), np.bool_))
    assert found.output.item() == 4 / 3
    half = dropped_attention(one, one, one, dropout_p=0.25, keep=np.ones((1, 1, 1, 1), np.bool_), rounded_to=FLOAT16)
    assert half.output.item() == np.float16(4 / 3)


def test_everything_dropped_is_0(drawn: dict[str, Any]) -> None:
    found = dropped_attention(*three(drawn), dropout_p=1.0, keep=np.zeros(SHAPE, np.bool_))
    gradients = backward(*three(drawn), drawn["flow"], dropout_p=1.0, keep=np.zeros(SHAPE, np.bool_))
    assert not any(x.any() for x in (found.output, gradients.query, gradients.key, gradients.value))


def test_a_merge_is_attention_over_all_keys(drawn: dict[str, Any]) -> None:
    query, key, value = three(drawn)
    halves = [attention(query, key[:, :, part], value[:, :, part]) for part in (slice(0, 2), slice(2, 6))]
    whole = attention(query, key, value)
    merged = merge(np.stack([half.output for half in halves]), np.stack([half.lse for half in halves]))
    np.testing.assert_allclose(merged.output, whole.output, rtol=0, atol=1e-15)  # the halves are rounded
    np.testing.assert_allclose(merged.lse, whole.lse, rtol=0, atol=1e-15)


def test_a_merge_of_ties_is_exact() -> None:
    outputs, lses = np.array([1.0, 2.0, 4.0]).reshape(3, 1, 1, 1, 1), np.zeros((3, 1, 1, 1))
    merged = merge(outputs, lses)
    assert merged.output.item() == 7 / 3
    assert merged.lse.item() == np.log(3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dropout_p": 1.5, "keep": np.ones(SHAPE, np.bool_)}, "dropout_p is 1.5"),
        ({"dropout_p": float("nan"), "keep": np.ones(SHAPE, np.bool_)}, "dropout_p is nan"),
        ({"dropout_p": 0.5, "keep": np.ones(SHAPE)}, "keep is float64"),
        ({"dropout_p": 0.5, "keep": np.ones(SHAPE[1:], np.bool_)}, r"use bool \(1, 2, 4, 6\)"),
    ],
)
def test_what_does_not_fit_is_told(drawn: dict[str, Any], options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        dropped_attention(*three(drawn), **options)
    with pytest.raises(InputError, match=told):
        backward(*three(drawn), drawn["flow"], **options)


def test_parts_that_do_not_fit_are_told() -> None:
    with pytest.raises(InputError, match="do not fit lses"):
        merge(np.zeros((2, 1, 1, 3, 4)), np.zeros((2, 1, 1, 4)))
    with pytest.raises(InputError, match="holds nan"):
        merge(np.full((2, 1, 1, 3, 4), np.nan), np.zeros((2, 1, 1, 3)))
