"""ALiBi: its slopes in balls, its bias against closed forms, its dialects, and the faults that each law finds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from laws import law_tests

from attnspec.reference.alibi import bias, distance, slopes, slopes_backward
from attnspec.reference.attention import attention
from attnspec.reference.backward import backward
from attnspec.reference.exact import attention as exact_attention
from attnspec.reference.exact.alibi import bias as exact_bias
from attnspec.reference.exact.alibi import slopes as exact_slopes
from attnspec.spec.call import Result
from attnspec.spec.dtypes import FLOAT32
from attnspec.spec.errors import InputError

TOLERANCE = 1e-13  # for values of about 1 in float64
Kernel = Callable[..., Result]


def alibi_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    m: torch.Tensor,
    *,
    form: str = "symmetric",
    alignment: str | None = None,
    **options: Any,
) -> Result:
    """Attention with slopes; without an alignment, at the corner of the causal triangle."""
    corner = alignment or options.get("causal_alignment", "upper_left")
    return attention(q, k, v, alibi_slopes=m, alibi_form=form, alibi_alignment=corner, **options)


def drawn(q_len: int, k_len: int, heads: int = 4, batch: int = 2) -> tuple[torch.Tensor, ...]:
    """Return query, key and value, float64, with half as many key heads, head_dim 5 and value_dim 3."""
    generator = torch.Generator().manual_seed(q_len * 100 + k_len)
    shapes = (batch, heads, q_len, 5), (batch, heads // 2, k_len, 5), (batch, heads // 2, k_len, 3)
    query, key, value = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query, key, value


def assert_close(got: torch.Tensor | None, want: torch.Tensor | None, tolerance: float = TOLERANCE) -> None:
    __tracebackhide__ = True
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- slopes


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (2, [4, 8]),
        (3, [4, 8, 2]),
        (6, [2, 4, 6, 8, 1, 3]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (16, [0.5 * h for h in range(1, 17)]),
    ],
)
def test_slopes_by_hand(heads: int, exponents: list[float]) -> None:
    assert slopes(heads).tolist() == pytest.approx([2.0**-e for e in exponents], rel=1e-15)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 14, 20, 32, 40, 71, 112])
def test_slopes_are_the_true_ones(heads: int) -> None:
    assert slopes(heads).tolist() == pytest.approx(exact_slopes(heads).tolist(), rel=4e-16, abs=0)
    assert torch.equal(slopes(heads).float(), torch.from_numpy(exact_slopes(heads, FLOAT32)).float())
    assert len(set(slopes(heads).tolist())) == heads


def slopes_of_the_next_power(heads: int) -> list[float]:
    return [2.0 ** (-8 * (h + 1) / 2 ** math.ceil(math.log2(heads))) for h in range(heads)]


def slopes_from_head_0_at_1(heads: int) -> list[float]:
    n = 2 ** math.floor(math.log2(heads))
    return [2.0 ** (-8 * h / n) for h in range(n)] + [2.0 ** (-4 * (2 * h + 1) / n) for h in range(heads - n)]


def slopes_of_the_even_heads(heads: int) -> list[float]:
    n = 2 ** math.floor(math.log2(heads))
    return [2.0 ** (-8 * (h + 1) / n) for h in range(n)] + [2.0 ** (-4 * (2 * h + 2) / n) for h in range(heads - n)]


@pytest.mark.parametrize("fault", [slopes_of_the_next_power, slopes_from_head_0_at_1, slopes_of_the_even_heads])
def test_faulty_slopes_are_told_apart(fault: Callable[[int], list[float]]) -> None:
    assert fault(6) != pytest.approx(exact_slopes(6).tolist(), rel=2.0**-16)


# ---------------------------------------------------------------- by hand


def test_the_four_dialects_by_hand() -> None:
    far = partial(distance, 2, 4, alignment="lower_right")
    assert far()[0, 0].tolist() == [[2, 1, 0, 1], [3, 2, 1, 0]]
    assert far(form="signed")[0, 0].tolist() == [[2, 1, 0, -1], [3, 2, 1, 0]]
    assert far(alignment="upper_left")[0, 0].tolist() == [[0, 1, 2, 3], [1, 0, 1, 2]]
    assert far(form="signed", alignment="upper_left")[0, 0].tolist() == [[0, -1, -2, -3], [1, 0, -1, -2]]
    assert far(key_lengths=torch.tensor([4, 3]))[:, 0, 1].tolist() == [[3, 2, 1, 0], [2, 1, 0, 1]]
    assert bias(torch.tensor([0.5, 0.25]), far())[0, :, 1].tolist() == [
        [-1.5, -1.0, -0.5, 0.0],
        [-0.75, -0.5, -0.25, 0],
    ]


def test_a_geometric_series() -> None:
    q, k, v = torch.zeros(1, 2, 1, 1), torch.zeros(1, 2, 9, 1), torch.ones(1, 2, 9, 1)
    result = alibi_attention(q, k, v, slopes(2), alignment="lower_right")
    ratios = [math.exp(-m) for m in slopes(2).tolist()]
    assert result.lse is not None
    assert result.lse.flatten().tolist() == pytest.approx([math.log((1 - r**9) / (1 - r)) for r in ratios], rel=1e-14)


# ---------------------------------------------------------------- laws

SIZES = [(3, 7), (7, 3), (4, 4), (1, 6)]
FOUR = [(form, alignment) for form in ("symmetric", "signed") for alignment in ("lower_right", "upper_left")]


def follows_its_dialect(kernel: Kernel) -> None:
    """Scores are read back as log w + lse, element by element, from a query of 0."""
    m = torch.tensor([0.5, 0.25, -0.125, 2.0]).double()
    for q_len, k_len in SIZES:
        query, key, value = drawn(q_len, k_len)
        for form, alignment in FOUR:
            offset = k_len - q_len if alignment == "lower_right" else 0
            result = kernel(query * 0, key, value, m, form=form, alignment=alignment, enable_gqa=True)
            for i in range(q_len):
                far = [i + offset - j for j in range(k_len)]
                far = far if form == "signed" else [abs(d) for d in far]
                scores = -m[:, None] * torch.tensor(far)
                assert_close(result.lse[1, :, i], scores.logsumexp(-1))
                assert_close(result.weights[1, :, i], scores.softmax(-1))


def adds_to_the_scaled_score(kernel: Kernel) -> None:
    query, key, value = drawn(3, 7)
    m = slopes(4)
    for scale in (None, 3.0, -0.5):
        far = (torch.arange(3)[:, None] + 4 - torch.arange(7)).abs()
        want = attention(query, key, value, attn_mask=-m[:, None, None] * far, scale=scale, enable_gqa=True)
        got = kernel(query, key, value, m, scale=scale, alignment="lower_right", enable_gqa=True)
        assert_close(got.output, want.output)
        assert_close(got.lse, want.lse)


def takes_slopes_of_each_batch_element(kernel: Kernel) -> None:
    query, key, value = drawn(3, 7)
    m = torch.stack([slopes(4), -slopes(4)])
    whole = kernel(query, key, value, m, enable_gqa=True)
    for b in range(2):
        alone = kernel(query[b : b + 1], key[b : b + 1], value[b : b + 1], m[b], enable_gqa=True)
        assert_close(whole.output[b : b + 1], alone.output)


def decodes_as_it_prefills(kernel: Kernel) -> None:
    query, key, value = drawn(6, 6)
    options: dict[str, Any] = {"is_causal": True, "causal_alignment": "lower_right", "enable_gqa": True}
    whole = kernel(query, key, value, slopes(4), **options)
    for t in range(6):
        one, lengths = query[:, :, t : t + 1], torch.tensor([t + 1, t + 1])
        step = kernel(one, key, value, slopes(4), key_lengths=lengths, **options)
        assert_close(step.output[:, :, 0], whole.output[:, :, t])
        assert_close(step.lse[:, :, 0], whole.lse[:, :, t])


LAWS = (follows_its_dialect, adds_to_the_scaled_score, takes_slopes_of_each_batch_element, decodes_as_it_prefills)


def sign_flipped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, **options: Any) -> Result:
    return alibi_attention(q, k, v, -m, **options)


def heads_in_reverse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, **options: Any) -> Result:
    return alibi_attention(q, k, v, m.flip(-1), **options)


def slope_of_the_key_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, **options: Any) -> Result:
    return alibi_attention(q, k, v, m[..., :: q.shape[1] // k.shape[1]].repeat_interleave(2, -1), **options)


def slopes_scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, **options: Any) -> Result:
    """The bias is added before the scale."""
    scale = options.get("scale") or q.shape[-1] ** -0.5
    return alibi_attention(q, k, v, m * scale, **options)


def slopes_of_batch_0(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, **options: Any) -> Result:
    return alibi_attention(q, k, v, m[0] if m.ndim == 2 else m, **options)


def always(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, *, fixed: dict[str, str], **options: Any
) -> Result:
    """Ignores one dialect."""
    return alibi_attention(q, k, v, m, **options | fixed)


def without_offset(*tensors: torch.Tensor, **options: Any) -> Result:
    return always(*tensors, fixed={"alignment": "upper_left"}, **options)


def with_offset(*tensors: torch.Tensor, **options: Any) -> Result:
    return always(*tensors, fixed={"alignment": "lower_right"}, **options)


def signed_only(*tensors: torch.Tensor, **options: Any) -> Result:
    return always(*tensors, fixed={"form": "signed"}, **options)


def symmetric_only(*tensors: torch.Tensor, **options: Any) -> Result:
    return always(*tensors, fixed={"form": "symmetric"}, **options)


def offset_of_the_storage(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor, **options: Any) -> Result:
    """With key lengths the diagonal stays at the end of the storage."""
    far = distance(q.shape[2], k.shape[2], alignment="lower_right")
    return attention(q, k, v, attn_mask=bias(m, far), **options)


FAULTS = [
    *(
        (fault, follows_its_dialect)
        for fault in (
            sign_flipped,
            heads_in_reverse,
            slope_of_the_key_head,
            without_offset,
            with_offset,
            signed_only,
            symmetric_only,
        )
    ),
    (slopes_scaled, adds_to_the_scaled_score),
    (slopes_of_batch_0, takes_slopes_of_each_batch_element),
    (offset_of_the_storage, decodes_as_it_prefills),
    (without_offset, decodes_as_it_prefills),
]


test_the_reference_keeps_the_law, test_a_fault_breaks_the_law, test_each_law_finds_a_fault = law_tests(
    (alibi_attention,), LAWS, FAULTS
)


def test_another_offset_of_the_signed_form_shows_in_the_lse_only() -> None:
    tensors = drawn(3, 7)
    call = partial(alibi_attention, *tensors, slopes(4), form="signed", enable_gqa=True)
    right, left = call(alignment="lower_right"), call(alignment="upper_left")
    assert right.lse is not None
    assert left.lse is not None
    assert_close(right.output, left.output)
    assert_close(left.lse - right.lse, (slopes(4) * 4)[None, :, None].expand_as(left.lse))


# ---------------------------------------------------------------- truth and gradients


def test_the_truth_is_exact_attention_under_an_exact_bias() -> None:
    query, key, value = drawn(3, 5)
    m = slopes(4).float()
    true = exact_attention(
        query.numpy(),
        key.numpy(),
        value.numpy(),
        enable_gqa=True,
        attn_mask=exact_bias(m.numpy(), distance(3, 5).numpy()),
    )
    got = alibi_attention(query, key, value, m, enable_gqa=True)
    assert_close(got.output, torch.from_numpy(true.output))
    assert_close(got.lse, torch.from_numpy(true.lse))
    for batched in (m, torch.stack([m, 3 * m])):
        far = distance(3, 5, form="signed", key_lengths=torch.tensor([2, 5]), alignment="lower_right")
        assert np.array_equal(exact_bias(batched.numpy(), far.numpy()), bias(batched, far).numpy())
    for inexact in (exact_slopes(16), np.stack([exact_slopes(8), exact_slopes(16)[8:] / 3])):
        with pytest.raises(InputError, match="is no float64 number: use slopes of float32"):
            exact_bias(inexact, distance(3, 5).numpy())


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("form", ["symmetric", "signed"])
def test_gradients_are_those_of_autograd(form: str, batched: bool) -> None:
    m = (torch.stack([slopes(4), 2 * slopes(4)]) if batched else slopes(4)).requires_grad_()
    given = [x.requires_grad_() for x in drawn(3, 5)]
    result = alibi_attention(*given, m, form=form, is_causal=True, enable_gqa=True)
    grad_output = torch.randn(result.output.shape, dtype=torch.float64)
    *want, want_slopes = torch.autograd.grad((result.output * grad_output).sum(), [*given, m])
    far = distance(3, 5, form=form)
    full = bias(m, far).expand(2, 4, 3, 5).detach()
    got = backward(*given, grad_output, attn_mask=full, is_causal=True, enable_gqa=True)
    for mine, autograd in zip(got[:3], want, strict=True):
        assert_close(mine.detach(), autograd)
    assert got.attn_mask is not None
    assert_close(slopes_backward(got.attn_mask, far, m).detach(), want_slopes)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("m", "options", "message"),
    [
        (torch.ones(2), {}, "alibi_slopes has shape (2,): use (4,) or (2, 4)"),
        (torch.ones(3, 4), {}, "alibi_slopes has shape (3, 4): use (4,) or (2, 4)"),
        (
            torch.ones(4, dtype=torch.int64),
            {},
            "alibi_slopes is torch.int64 (4,): use floating (heads,) or (batch, heads)",
        ),
        (torch.ones(4), {"form": "cubic"}, "alibi_form is 'cubic': use one of symmetric, signed"),
        (torch.ones(4), {"alignment": "left"}, "alibi_alignment is 'left': use one of upper_left, lower_right"),
        (torch.ones(4), {"key_lengths": torch.tensor([1, 8])}, "key_lengths has 8 for batch 1: use 0 to 7"),
    ],
)
def test_bad_input_is_told_in_one_line(m: torch.Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        alibi_attention(*drawn(3, 7), m, enable_gqa=True, **options)
    assert str(caught.value) == message


def test_a_bias_of_two_batches_fits_one_of_both_or_of_one() -> None:
    two, three = distance(1, 4, key_lengths=torch.tensor([4, 3])), distance(1, 4, key_lengths=torch.tensor([4, 3, 2]))
    assert bias(torch.ones(2, 5), two).shape == (2, 5, 1, 4)
    assert bias(torch.ones(1, 5), three).shape == (3, 5, 1, 4)
    assert bias(torch.ones(2, 5), distance(1, 4)).shape == (2, 5, 1, 4)
    with pytest.raises(InputError, match=r"^alibi_slopes has batch 2 and key_lengths 3: use the same$"):
        bias(torch.ones(2, 5), three)


@pytest.mark.parametrize("of", [slopes, exact_slopes])
def test_no_heads_have_no_slopes(of: Callable[[int], Any]) -> None:
    with pytest.raises(InputError, match=r"^0 heads: use 1 or more$"):
        of(0)
