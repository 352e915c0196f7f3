"""The closed form of the backward: against autograd, finite differences and numbers computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from attnspec.reference.attention import attention
from attnspec.reference.backward import Gradients, backward
from attnspec.reference.grouped_heads import expand
from attnspec.spec.errors import InputError

BATCH, Q_HEADS, Q_LEN, K_LEN, HEAD_DIM, VALUE_DIM = 2, 4, 3, 5, 4, 2
SCORES = (BATCH, Q_HEADS, Q_LEN, K_LEN)


# ---------------------------------------------------------------- helpers


def draw(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Return normal float64 tensors of a generator with a fixed stream."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def inputs(seed: int = 0, kv_heads: int = 2, kv_batch: int = BATCH) -> list[torch.Tensor]:
    """Return query, key, value, grad_output and grad_lse."""
    keys = (kv_batch, kv_heads, K_LEN)
    rows = SCORES[:3]
    return draw(seed, (*rows, HEAD_DIM), (*keys, HEAD_DIM), (*keys, VALUE_DIM), (*rows, VALUE_DIM), rows)


def masks() -> dict[str, torch.Tensor | None]:
    """Return one mask of each kind; `empty` leaves rows that see no key."""
    (bias,) = draw(90, SCORES)
    keep = bias > -0.5
    empty = keep & (torch.arange(Q_LEN) != 1)[:, None]
    return {
        "none": None,
        "bool": keep,
        "bias": bias,
        "empty": empty,
        "empty bias": torch.where(empty, bias, -torch.inf),
        "row bias": bias[:1, :1, :, :1],
    }


def by_autograd(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad_output: torch.Tensor,
    *,
    grad_lse: torch.Tensor | None = None,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    keep: torch.Tensor | None = None,
    **options: Any,
) -> Gradients:
    """Return the gradients by autograd through the reference's forward."""
    leaves = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.detach().clone().requires_grad_()
        leaves.append(attn_mask)
    result = attention(*leaves[:3], attn_mask=attn_mask, **options)
    output = result.output
    if keep is not None:
        assert result.weights is not None
        output = (result.weights * keep / (1 - dropout_p)) @ expand(leaves[2], query.shape[1])
    loss = (output * grad_output).sum()
    if grad_lse is not None:
        assert result.lse is not None
        seeing = result.lse != -torch.inf
        loss = loss + (result.lse[seeing] * grad_lse[seeing]).sum()
    grads = list(torch.autograd.grad(loss, leaves))
    return Gradients(*grads, *[None] * (4 - len(grads)))


def agree(left: Gradients, right: Gradients) -> bool:
    """Whether two results have the same shapes and the same numbers, up to float64 rounding."""
    for a, b in zip(left, right, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif a.shape != b.shape or not torch.allclose(a, b, rtol=1e-12, atol=1e-12):
            return False
    return True


def bits(gradients: Gradients) -> list[bytes]:
    """Return the bytes of each gradient, -0 counted as 0."""
    return [(x + 0.0).numpy().tobytes() for x in gradients if x is not None]


def one_query(**options: Any) -> list[list[float]]:
    """Return the gradients, flat, of query 2 over keys 0 and log 3 at scale 1/2: the weights are 1/4 and 3/4."""
    query, grad_output = (torch.full((1, 1, 1, 1), 2.0, dtype=torch.float64) for _ in range(2))
    key = torch.tensor([0.0, math.log(3)], dtype=torch.float64).reshape(1, 1, 2, 1)
    value = torch.tensor([1.0, 5.0], dtype=torch.float64).reshape(1, 1, 2, 1)
    mask = torch.zeros(2, dtype=torch.float64)
    gradients = backward(query, key, value, grad_output, attn_mask=mask, scale=0.5, **options)
    return [x.flatten().tolist() for x in gradients if x is not None]


# ---------------------------------------------------------------- by hand


def test_one_query_over_two_keys_by_hand() -> None:
    # dp = (2, 10), delta = 2/4 + 30/4 = 8, ds = (1/4 (2 - 8), 3/4 (10 - 8)) = (-3/2, 3/2)
    query, key, value, mask = one_query()
    assert query == pytest.approx([0.75 * math.log(3)], rel=1e-14)
    assert key == pytest.approx([-1.5, 1.5], rel=1e-14)
    assert value == pytest.approx([0.5, 1.5], rel=1e-14)
    assert mask == pytest.approx([-1.5, 1.5], rel=1e-14)


def test_a_gradient_of_the_lse_adds_the_weights_by_hand() -> None:
    # ds = (-3/2, 3/2) + 4 (1/4, 3/4) = (-1/2, 9/2); the value's gradient does not change
    query, key, value, mask = one_query(grad_lse=torch.full((1, 1, 1), 4.0))
    assert query == pytest.approx([2.25 * math.log(3)], rel=1e-14)
    assert key == pytest.approx([-0.5, 4.5], rel=1e-14)
    assert value == pytest.approx([0.5, 1.5], rel=1e-14)
    assert mask == pytest.approx([-0.5, 4.5], rel=1e-14)


def test_dropout_by_hand() -> None:
    # key 0 dropped, p = 1/2: dp = (0, 20), delta = 15, ds = (1/4 (0 - 15), 3/4 (20 - 15)) = (-15/4, 15/4)
    keep = torch.tensor([False, True]).reshape(1, 1, 1, 2)
    _, key, value, _ = one_query(dropout_p=0.5, keep=keep)
    assert key == pytest.approx([-3.75, 3.75], rel=1e-14)
    assert value == pytest.approx([0.0, 3.0], rel=1e-14)


# ---------------------------------------------------------------- autograd and finite differences


@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("causal", [None, "upper_left", "lower_right"])
def test_every_combination_of_options_agrees_with_autograd(mask: str, causal: str | None) -> None:
    for n, (heads, kv_batch, scale, with_lse, dropout_p) in enumerate(
        product((4, 2, 1), (BATCH, 1), (None, -0.7, 0.0), (False, True), (0.0, 0.3))
    ):
        query, key, value, grad_output, grad_lse = inputs(n, heads, kv_batch)
        options: dict[str, Any] = {
            "attn_mask": masks()[mask],
            "is_causal": causal is not None,
            "causal_alignment": causal or "upper_left",
            "scale": scale,
            "enable_gqa": heads != Q_HEADS,
            "grad_lse": grad_lse if with_lse else None,
            "dropout_p": dropout_p,
            "keep": draw(n + 1000, SCORES)[0] > -0.5 if dropout_p else None,
        }
        expected = by_autograd(query, key, value, grad_output, **options)
        assert agree(backward(query, key, value, grad_output, **options), expected), options


BROADCASTS = [shape for rank in range(5) for shape in product(*((1, size) for size in SCORES[4 - rank :]))]


@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_a_bias_of_every_shape_has_a_gradient_of_its_shape(shape: tuple[int, ...]) -> None:
    query, key, value, grad_output, grad_lse = inputs(3)
    (bias,) = draw(4, shape)
    options: dict[str, Any] = {"grad_lse": grad_lse, "is_causal": True, "enable_gqa": True}
    gradients = backward(query, key, value, grad_output, attn_mask=bias, **options)
    assert gradients.attn_mask is not None
    assert gradients.attn_mask.shape == shape
    assert agree(gradients, by_autograd(query, key, value, grad_output, attn_mask=bias, **options))


class ClosedForm(torch.autograd.Function):
    """Attention whose backward is the closed form."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(*tensors)
        query, key, value, bias = tensors
        result = attention(query, key, value, attn_mask=bias, is_causal=True, enable_gqa=True)
        assert result.lse is not None
        return result.output, result.lse

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        query, key, value, bias = ctx.saved_tensors
        return tuple(
            backward(query, key, value, grads[0], grad_lse=grads[1], attn_mask=bias, is_causal=True, enable_gqa=True)
        )


def test_finite_differences_confirm_the_closed_form() -> None:
    tensors = draw(5, (1, 2, 3, 2), (1, 1, 4, 2), (1, 1, 4, 3), (3, 1))
    assert torch.autograd.gradcheck(ClosedForm.apply, [x.requires_grad_() for x in tensors])


# ---------------------------------------------------------------- sums over readers


def test_a_group_gives_its_key_head_the_sum_of_its_gradients() -> None:
    query, key, value, grad_output, grad_lse = inputs(6, kv_heads=2)
    grouped = backward(query, key, value, grad_output, grad_lse=grad_lse, enable_gqa=True)
    whole = backward(query, expand(key, Q_HEADS), expand(value, Q_HEADS), grad_output, grad_lse=grad_lse)
    for short, long in ((grouped.key, whole.key), (grouped.value, whole.value)):
        torch.testing.assert_close(short[:, 0], long[:, 0] + long[:, 1], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(short[:, 1], long[:, 2] + long[:, 3], rtol=1e-13, atol=1e-13)


# ---------------------------------------------------------------- empty rows and hidden slots


@pytest.mark.parametrize("mask", ["empty", "empty bias"])
@pytest.mark.parametrize("stray", [1.0, 1e300])
def test_an_empty_row_adds_nothing(mask: str, stray: float) -> None:
    query, key, value, grad_output, grad_lse = inputs(8)
    options: dict[str, Any] = {"attn_mask": masks()[mask], "enable_gqa": True}
    expected = backward(query, key, value, grad_output, grad_lse=grad_lse, **options)
    grad_output[:, :, 1], grad_lse[:, :, 1] = stray, -stray
    gradients = backward(query, key, value, grad_output, grad_lse=grad_lse, **options)
    assert bits(gradients) == bits(expected)
    assert gradients.query[:, :, 1].count_nonzero() == 0
    assert all(x.isfinite().all() for x in gradients if x is not None)


@pytest.mark.parametrize("hidden", [0.0, 1.0, 1e300])
def test_a_hidden_key_has_gradient_0_and_no_influence(hidden: float) -> None:
    query, key, value, grad_output, grad_lse = inputs(9)
    keep = torch.ones(K_LEN, dtype=torch.bool)
    keep[[0, 3]] = False
    bias = torch.where(keep, draw(10, (K_LEN,))[0], -torch.inf)
    for mask in (keep, bias):
        options: dict[str, Any] = {"attn_mask": mask, "grad_lse": grad_lse, "enable_gqa": True}
        expected = backward(query, key, value, 1e10 * grad_output, **options)
        key[:, :, ~keep], value[:, :, ~keep] = hidden, -hidden
        gradients = backward(query, key, value, 1e10 * grad_output, **options)
        assert bits(gradients) == bits(expected)
        assert gradients.key[:, :, ~keep].count_nonzero() == gradients.value[:, :, ~keep].count_nonzero() == 0
        if gradients.attn_mask is not None:
            assert gradients.attn_mask[~keep].tolist() == [0.0, 0.0]


def test_lengths_and_batches_of_0_give_gradients_of_0() -> None:
    for batch, q_len, k_len in ((1, 0, 3), (1, 3, 0), (0, 3, 3)):
        query, key, value, grad_output = draw(
            11, (batch, 2, q_len, 2), (1, 1, k_len, 2), (1, 1, k_len, 3), (batch, 2, q_len, 3)
        )
        mask = torch.zeros(q_len, k_len)
        gradients = backward(query, key, value, grad_output, attn_mask=mask, enable_gqa=True)
        assert gradients.sinks is None
        for gradient, given in zip(gradients[:4], (query, key, value, mask), strict=True):
            assert gradient is not None
            assert gradient.shape == given.shape
            assert gradient.count_nonzero() == 0


# ---------------------------------------------------------------- range, dropout, dtypes


@pytest.mark.parametrize("shift", [-1e4, -200.0, 200.0, 1e4])
def test_a_shift_of_all_scores_changes_no_gradient(shift: float) -> None:
    query, key, value, grad_output, grad_lse = inputs(12)
    options: dict[str, Any] = {"grad_lse": grad_lse, "enable_gqa": True}
    shifted = backward(query, key, value, grad_output, attn_mask=torch.tensor(shift), **options)
    plain = backward(query, key, value, grad_output, **options)
    for a, b in zip(shifted[:3], plain[:3], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_dropout_of_0_is_no_dropout_bit_for_bit() -> None:
    query, key, value, grad_output, _ = inputs(13)
    plain = backward(query, key, value, grad_output, enable_gqa=True)
    kept = backward(query, key, value, grad_output, enable_gqa=True, keep=torch.ones(SCORES, dtype=torch.bool))
    assert bits(kept) == bits(plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_are_float64_whatever_the_inputs_are(dtype: torch.dtype) -> None:
    narrow = [x.to(dtype) for x in inputs(14)[:4]]
    gradients = backward(*narrow, enable_gqa=True)
    assert gradients.attn_mask is None
    assert bits(gradients) == bits(backward(*(x.double() for x in narrow), enable_gqa=True))


# ---------------------------------------------------------------- planted faults and refusals


FAULTS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "no delta": ("backward.softmax_backward", lambda w, g, visible, lse: w * (g + lse[..., None])),
    "no lse": ("backward.softmax_backward", lambda w, g, visible, lse: w * (g - (w * g).sum(-1, keepdim=True))),
    "lse not weighted": (
        "backward.softmax_backward",
        lambda w, g, visible, lse: w * (g - (w * g).sum(-1, keepdim=True)) + lse[..., None],
    ),
    "last writer of a group": ("backward.sum_readers", lambda grad, heads: grad[:, 1::2]),
    "tiled heads": ("backward.sum_readers", lambda grad, heads: grad[:, :2] + grad[:, 2:]),
    "last writer of a bias": ("backward.mask_backward", lambda grad_scores, mask: grad_scores.sum((0, 1))[-1:]),
    "dropped, not rescaled": ("dropout.apply", lambda weights, keep, p: weights * keep),
}


@pytest.mark.parametrize(("part", "fault"), FAULTS.values(), ids=FAULTS)
def test_autograd_exposes_a_planted_fault(
    part: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    query, key, value, grad_output, grad_lse = inputs(15)
    options: dict[str, Any] = {
        "grad_lse": grad_lse,
        "attn_mask": draw(16, (1, K_LEN))[0],
        "enable_gqa": True,
        "dropout_p": 0.3,
        "keep": draw(17, SCORES)[0] > -0.5,
    }
    expected = by_autograd(query, key, value, grad_output, **options)
    assert agree(backward(query, key, value, grad_output, **options), expected)
    monkeypatch.setattr(f"attnspec.reference.{part}", fault)
    assert not agree(backward(query, key, value, grad_output, **options), expected)


def test_autograd_exposes_a_missing_scale() -> None:
    tensors = inputs(18)[:4]
    expected, right = by_autograd(*tensors, enable_gqa=True), backward(*tensors, enable_gqa=True)
    for name in ("query", "key"):
        unscaled = right._replace(**{name: getattr(right, name) * math.sqrt(HEAD_DIM)})
        assert not agree(unscaled, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grad_output": torch.ones(2, 4, 3, 5)}, "grad_output has shape (2, 4, 3, 5): use (2, 4, 3, 2)"),
        ({"grad_output": torch.ones(2, 4, 3, 2, dtype=torch.int64)}, "grad_output is torch.int64: use a floating"),
        ({"grad_lse": torch.ones(2, 4, 3, 1)}, "grad_lse has shape (2, 4, 3, 1): use (2, 4, 3)"),
        ({"dropout_p": 1.0}, "dropout_p is 1.0: use a probability"),
        ({"dropout_p": 0.5}, "keep is None: give the mask"),
        ({"keep": torch.ones(3, 5, dtype=torch.bool)}, "keep is torch.bool (3, 5): use a bool mask (2, 4, 3, 5)"),
        ({"attn_mask": torch.zeros(4, 5)}, "attn_mask (4, 5) does not broadcast"),
    ],
)
def test_unusable_input_is_told_in_one_line(changes: dict[str, Any], message: str) -> None:
    query, key, value, grad_output, _ = inputs()
    arguments: dict[str, Any] = {"grad_output": grad_output, "enable_gqa": True} | changes
    with pytest.raises(InputError) as caught:
        backward(query, key, value, **arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
