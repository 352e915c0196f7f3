"""What a bare callable's parameters claim, and how the tensors are handed over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnspec.conformance.signature import Claims, claims_of
from attnspec.spec.errors import InputError

TRIED = {"value_dim", "kv_broadcast", "enable_gqa", "empty", "backward"}
MASKS = {
    "attn_mask.bool",
    "attn_mask.float",
    "attn_mask.rank1",
    "attn_mask.rank2",
    "attn_mask.rank3",
    "attn_mask.rank4",
}
OPEN = {*TRIED, *MASKS, "is_causal", "scale"}  # what `**kwargs` claims
PYTORCH = {*OPEN, "dropout_p"}
NAMES = ("query", "key", "value")


class Module(torch.nn.Module):
    """A module as people write them; its call takes `*args, **kwargs` and hands them to forward."""

    def forward(self, q: Any, k: Any, v: Any, is_causal: bool = False) -> Any:
        return q, k, v, {"is_causal": is_causal}


class Callee:
    def __call__(self, query: Any, key: Any, value: Any, scale: float | None = None) -> Any:
        return query, key, value, {"scale": scale}

    def method(self, query: Any, key: Any, value: Any) -> Any:
        return query, key, value, {}


def short(q: Any, k: Any, v: Any) -> Any:
    return q, k, v, {}


def any_names(a: Any, b: Any, c: Any, *, is_causal: bool = False) -> Any:
    return a, b, c, {"is_causal": is_causal}


def keyword_only(*, query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
    return query, key, value, {"attn_mask": attn_mask}


def another_order(value: Any, query: Any, key: Any) -> Any:
    return query, key, value, {}


def another_order_by_position(v: Any, q: Any, k: Any, /) -> Any:
    return q, k, v, {}


def option_first(attn_mask: Any, q: Any, k: Any, v: Any) -> Any:
    return q, k, v, {"attn_mask": attn_mask}


def positional_only(q: Any, k: Any, v: Any, /, is_causal: bool = False) -> Any:
    return q, k, v, {"is_causal": is_causal}


def open_ended(query: Any, key: Any, value: Any, **options: Any) -> Any:
    return query, key, value, options


def starred(*tensors: Any, scale: float | None = None) -> Any:
    return *tensors, {"scale": scale}


def full(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> Any:
    return query, key, value, {"enable_gqa": enable_gqa, "return_lse": return_lse}


def required_options(query: Any, key: Any, value: Any, attn_mask: Any, is_causal: Any, enable_gqa: Any) -> Any:
    return query, key, value, {"attn_mask": attn_mask, "is_causal": is_causal, "enable_gqa": enable_gqa}


@functools.wraps(short)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return short(*args, **kwargs)


def claims(function: Callable[..., Any]) -> Claims:
    return claims_of(function, "mine.py:attention", "fused", "upper_left")


CALLABLES = [
    (short, TRIED),
    (any_names, {*TRIED, "is_causal"}),
    (keyword_only, {*TRIED, *MASKS}),
    (another_order, TRIED),
    (another_order_by_position, TRIED),
    (option_first, {*TRIED, *MASKS}),
    (positional_only, {*TRIED, "is_causal"}),
    (open_ended, OPEN),
    (starred, {*TRIED, "scale"}),
    (full, {*PYTORCH, "return_lse"}),
    (required_options, {*TRIED, *MASKS, "is_causal"}),
    (wrapped, TRIED),
    (functools.partial(open_ended, extra=1), OPEN),
    (functools.partial(full, dropout_p=0.0), {*PYTORCH, "return_lse"}),
    (lambda q, k, v, scale=None: (q, k, v, {"scale": scale}), {*TRIED, "scale"}),
    (Callee(), {*TRIED, "scale"}),
    (Callee().method, TRIED),
    (Module(), {*TRIED, "is_causal"}),
]


@pytest.mark.parametrize(("function", "features"), CALLABLES, ids=lambda x: getattr(x, "__name__", type(x).__name__))
def test_the_parameters_claim_the_features(function: Callable[..., Any], features: set[str]) -> None:
    assert set(claims(function).capabilities.features) == features


@pytest.mark.parametrize(("function", "features"), CALLABLES, ids=lambda x: getattr(x, "__name__", type(x).__name__))
def test_the_tensors_arrive_in_their_places(function: Callable[..., Any], features: set[str]) -> None:
    assert claims(function).run(*NAMES)[:3] == NAMES


@pytest.mark.parametrize("function", [option_first, required_options])
def test_an_option_without_a_default_is_handed_the_spec_s(function: Callable[..., Any]) -> None:
    options = claims(function).run(*NAMES)[3]
    assert options.pop("attn_mask") is None
    assert not any(options.values())


def test_an_option_without_a_default_can_be_given() -> None:
    assert claims(required_options).run(*NAMES, is_causal=True)[3]["is_causal"] is True


def test_pytorch_s_function_claims_what_it_documents() -> None:
    assert set(claims(scaled_dot_product_attention).capabilities.features) == PYTORCH


def test_pytorch_s_function_runs_as_it_is() -> None:
    assert claims(scaled_dot_product_attention).run is scaled_dot_product_attention


@pytest.mark.parametrize(
    ("function", "flagless"), [(short, True), (Module(), True), (full, False), (open_ended, False)]
)
def test_the_flag_of_grouped_heads_is_passed_to_those_that_take_it(
    function: Callable[..., Any], flagless: bool
) -> None:
    assert claims(function).flagless_gqa == flagless


def test_what_the_user_says_of_a_callable_is_taken_over() -> None:
    declared = claims_of(short, "mine.py:short", "eager", "lower_right").capabilities
    assert (declared.accuracy, declared.causal_alignment) == ("eager", "lower_right")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: None, "takes nothing: it must take query, key and value"),
        (lambda x: x, "takes x: it must take query, key and value"),
        (
            lambda qkv, is_causal=False, scale=None: qkv,
            "takes qkv, is_causal, scale: it must take query, key and value",
        ),
        (lambda **options: options, "takes options: it must take query, key and value"),
        (lambda q, k, v, block: q, "needs a parameter 'block' that attention does not have: give it a default"),
        (lambda q, k, v, *, block: q, "needs a parameter 'block'"),
        (max, "has no readable signature: wrap it in a function with named parameters"),
        (functools.partial(scaled_dot_product_attention, scale=1.0), "has no readable signature"),
    ],
)
def test_a_callable_that_is_no_attention_is_one_line(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        claims(function)
    assert str(caught.value).startswith("target 'mine.py:attention' ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
