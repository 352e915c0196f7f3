"""The multi-head module: the article's example, splits by hand, and the exact oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from attnspec.reference import multi_head
from attnspec.reference.exact.multi_head import Projections
from attnspec.reference.exact.multi_head import multi_head as exact
from attnspec.reference.multi_head import MultiHeadAttention, concat_heads, split_heads, visible_slots
from attnspec.spec.errors import InputError

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


class ArticleAttention(nn.Module):
    """The module of the source article, section 5."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(p=dropout)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        batch_size = q.size(0)
        Q = self.w_q(q).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        K = self.w_k(k).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        V = self.w_v(v).view(batch_size, -1, self.num_heads, self.d_k).transpose(1, 2)
        scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        attn_weights = self.dropout(torch.softmax(scores, dim=-1))
        context = torch.matmul(attn_weights, V)
        context = context.transpose(1, 2).contiguous().view(batch_size, -1, self.d_model)
        output: torch.Tensor = self.w_o(context)
        return output


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal float64 numbers of a fixed stream."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def module(*sizes: int, seed: int = 0, **options: Any) -> MultiHeadAttention:
    """Return a float64 module in inference with parameters of a fixed stream."""
    torch.manual_seed(seed)
    return MultiHeadAttention(*sizes, **options).double().eval()


def identity(d_model: int, num_heads: int, **options: Any) -> MultiHeadAttention:
    """Return a module whose projections change nothing."""
    made = module(d_model, num_heads, bias=False, **options)
    for layer in (made.w_q, made.w_k, made.w_v, made.w_o):
        nn.init.eye_(layer.weight)
    return made


def triangle(length: int) -> torch.Tensor:
    """Return the article's causal mask, (1, 1, length, length)."""
    return torch.tril(torch.ones(length, length)).unsqueeze(0).unsqueeze(0)


def oracle(ours: MultiHeadAttention, *tokens: torch.Tensor, **options: Any) -> NDArray[np.float64]:
    """Return what the exact oracle says of a module's call."""
    layers = (ours.w_q, ours.w_k, ours.w_v, ours.w_o)
    biases = [None if layer.bias is None else array(layer.bias) for layer in layers]
    projections = Projections(*(array(layer.weight) for layer in layers), *biases)
    heads = {"num_heads": ours.num_heads, "num_kv_heads": ours.num_kv_heads}
    return exact(*map(array, tokens), projections, **heads, **options)


def array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's numbers."""
    found: NDArray[Any] = tensor.detach().numpy()
    return found


# ---------------------------------------------------------------- the article


def test_the_example_of_the_article_runs_as_printed() -> None:
    mha = MultiHeadAttention(d_model=64, num_heads=8)
    x = torch.randn(2, 5, 64)
    causal_mask = torch.tril(torch.ones(5, 5)).unsqueeze(0).unsqueeze(0)
    out = mha(x, x, x, mask=causal_mask)
    assert (out.shape, out.dtype) == (torch.Size([2, 5, 64]), torch.float32)
    assert (mha.dropout, mha.training) == (0.1, True)


@pytest.mark.parametrize("mask", [None, "padding", "causal", "bool", "int"])
def test_agrees_with_the_code_of_the_article(mask: str | None) -> None:
    article = ArticleAttention(24, 4).double().eval()
    ours = module(24, 4)
    ours.load_state_dict(article.state_dict())  # the layers have the same names
    padding = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])[:, None, None, :]
    given = {"padding": padding, "causal": triangle(6), "bool": triangle(6) > 0, "int": padding.int()}.get(mask or "")
    x = normal(2, 6, 24)
    torch.testing.assert_close(ours(x, x, x, given), article(x, x, x, given), **CLOSE)


def test_the_same_seed_gives_the_parameters_of_the_article() -> None:
    torch.manual_seed(3)
    article = ArticleAttention(8, 2).state_dict()
    torch.manual_seed(3)
    ours = MultiHeadAttention(8, 2).state_dict()
    assert list(ours) == list(article)
    assert all(ours[name].equal(article[name]) for name in article)


def test_an_empty_row_is_the_bias_and_not_the_mean_of_the_article() -> None:
    article, ours = ArticleAttention(8, 2).double().eval(), module(8, 2)
    ours.load_state_dict(article.state_dict())
    x, mask = normal(1, 3, 8).requires_grad_(), torch.tensor([[1.0, 1, 1], [0, 0, 0], [1, 0, 1]])[None, None]
    out, theirs = ours(x, x, x, mask), article(x, x, x, mask)
    assert out[0, 1].equal(ours.w_o.bias)
    assert (theirs[0, 1] - out[0, 1]).abs().max() > 0.01
    torch.testing.assert_close(out[0, [0, 2]], theirs[0, [0, 2]], **CLOSE)
    (gradient,) = torch.autograd.grad(out[0, 1].sum(), x)
    assert gradient.equal(torch.zeros_like(x))


def test_a_visible_score_below_the_sentinel_of_the_article_still_wins() -> None:
    q, k, v = (torch.full((1, n, 1), x).double() for n, x in ((1, 1e5), (2, -1e5), (2, 0.0)))
    v[0, :, 0] = torch.tensor([3.0, 5.0])
    mask = torch.tensor([1, 0])[None, None, None]
    assert identity(1, 1)(q, k, v, mask).item() == 3.0


# ---------------------------------------------------------------- heads


def test_heads_are_contiguous_columns_by_hand() -> None:
    tokens = torch.arange(12.0).reshape(1, 2, 6)
    assert split_heads(tokens, 2).tolist() == [[[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]]
    assert split_heads(tokens, 3)[0, 2].tolist() == [[4, 5], [10, 11]]
    assert concat_heads(split_heads(tokens, 3)).equal(tokens)


def test_each_head_reads_its_own_columns() -> None:
    x = normal(1, 4, 6)
    heads = identity(6, 2).heads(x, x, x)
    for i in range(2):
        own = x[0, :, 3 * i : 3 * i + 3]
        weights = torch.softmax(own @ own.T / math.sqrt(3), -1)
        torch.testing.assert_close(heads.output[0, i], weights @ own, **CLOSE)


def strided(tokens: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Split with a stride of num_heads: a fault."""
    return tokens.unflatten(2, (-1, num_heads)).permute(0, 3, 1, 2)


def swapped(heads: torch.Tensor) -> torch.Tensor:
    """Join the heads in the reverse order: a fault."""
    return concat_heads(heads.flip(1))


def untransposed(heads: torch.Tensor) -> torch.Tensor:
    """Join heads without the transposition: a fault."""
    batch, num_heads, length, dim = heads.shape
    return heads.reshape(batch, length, num_heads * dim)


@pytest.mark.parametrize(
    ("name", "fault"), [("split_heads", strided), ("concat_heads", swapped), ("concat_heads", untransposed)]
)
def test_the_comparison_finds_a_planted_swap(
    name: str, fault: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, x = module(12, 3), normal(2, 5, 12)
    expected = oracle(ours, x, x, x)
    monkeypatch.setattr(multi_head, name, fault)
    assert np.abs(array(ours(x, x, x)) - expected).max() > 1e-3


def test_grouped_heads_are_a_module_with_repeated_projections() -> None:
    grouped, full = module(12, 6, num_kv_heads=2), module(12, 6)
    state = grouped.state_dict()
    for name in ("w_k.weight", "w_k.bias", "w_v.weight", "w_v.bias"):
        state[name] = state[name].unflatten(0, (2, 2)).repeat_interleave(3, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = normal(2, 5, 12)
    torch.testing.assert_close(grouped(x, x, x), full(x, x, x), **CLOSE)


def test_is_causal_is_the_triangle_and_applies_with_the_mask() -> None:
    ours, x = module(12, 3), normal(2, 5, 12)
    mask = torch.tensor([[1, 0, 1, 1, 1], [0, 1, 1, 0, 1]])[:, None, None]
    assert ours(x, x, x, is_causal=True).equal(ours(x, x, x, triangle(5)))
    assert ours(x, x, x, mask, is_causal=True).equal(ours(x, x, x, mask * triangle(5)))
    last = ours(x[:, -2:], x, x, is_causal=True, causal_alignment="lower_right")
    torch.testing.assert_close(last, ours(x, x, x, is_causal=True)[:, -2:], **CLOSE)


def test_gradients_agree_with_finite_differences() -> None:
    ours = module(4, 2, kdim=3, vdim=2, num_kv_heads=1)
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])[None, None]
    tokens = [normal(1, length, dim, seed=dim).requires_grad_() for length, dim in ((2, 4), (3, 3), (3, 2))]
    assert torch.autograd.gradcheck(lambda q, k, v: ours(q, k, v, mask), tokens)


# ---------------------------------------------------------------- precision and dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_computes_in_float64_and_rounds_once(dtype: torch.dtype) -> None:
    narrow = module(12, 3).to(dtype)
    x = normal(2, 5, 12).to(dtype)
    wide = module(12, 3)
    wide.load_state_dict(narrow.state_dict())
    assert narrow(x, x, x).equal(wide(x.double(), x.double(), x.double()).to(dtype))


def test_dropout_acts_in_training_only_and_by_seed() -> None:
    ours, x = module(12, 4, dropout=0.5, num_kv_heads=2), normal(2, 5, 12)
    expected = ours(x, x, x)
    ours.train()
    runs = [ours(x, x, x, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert runs[0].equal(runs[1])
    assert not runs[0].equal(runs[2])
    assert not runs[0].equal(expected)
    ours.dropout = 0.0
    assert ours(x, x, x).equal(expected)
    ours.dropout = 1.0
    assert ours(x, x, x).equal(ours.w_o.bias.expand(2, 5, 12))


def test_dropout_acts_on_weights_after_the_softmax() -> None:
    ours, x = module(12, 3, dropout=0.5), normal(2, 5, 12)
    plain = ours.heads(x, x, x).weights
    dropped = ours.train().heads(x, x, x, generator=torch.Generator().manual_seed(1)).weights
    assert plain is not None
    assert dropped is not None
    kept = dropped != 0
    assert 0 < kept.sum() < kept.numel()
    assert dropped.equal(torch.where(kept, 2 * plain, 0.0))


# ---------------------------------------------------------------- the exact oracle


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"d_k": 4, "d_v": 1}, {"d_k": 5, "d_v": 7, "kdim": 5, "vdim": 3}, {"num_kv_heads": 2},
     {"num_kv_heads": 1, "kdim": 3}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("is_causal", [False, True])
def test_agrees_with_the_exact_oracle(options: dict[str, Any], is_causal: bool) -> None:
    ours = module(8, 4, seed=5, **options)
    q, k, v = normal(2, 3, 8), normal(2, 5, ours.kdim, seed=1), normal(2, 5, ours.vdim, seed=2)
    mask = normal(2, 4, 3, 5, seed=3) > -0.5
    mask[0, :, 1] = False
    expected = oracle(ours, q, k, v, mask=array(mask), is_causal=is_causal)
    np.testing.assert_allclose(array(ours(q, k, v, mask, is_causal=is_causal)), expected, rtol=1e-13, atol=1e-14)
    empty = np.zeros(8) if ours.w_o.bias is None else array(ours.w_o.bias)
    assert expected[0, 1].tolist() == empty.tolist()


# ---------------------------------------------------------------- refusals


def test_masks_of_every_dtype_say_0_for_masked() -> None:
    seen = [[True, False], [False, True]]
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float64):
        assert visible_slots(torch.tensor([[1, 0], [0, 1]]).to(dtype)).tolist() == seen
    assert visible_slots(torch.tensor([0.25, 0.0, -0.0])).tolist() == [True, False, False]


@pytest.mark.parametrize("value", [-1e9, -math.inf, math.inf, math.nan])
def test_an_additive_mask_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="use 0 for masked and 1 for visible"):
        visible_slots(torch.tensor([0.0, value]))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_heads": 3}, "d_model 8 is no multiple of num_heads 3"),
        ({"num_heads": 3, "d_k": 2}, "d_model 8 is no multiple of num_heads 3"),
        ({"num_kv_heads": 3}, "num_heads 4 is no multiple of num_kv_heads 3"),
        ({"num_heads": 0}, "num_heads is 0: use 1 or more"),
        ({"d_v": 0}, "d_v is 0: use 1 or more"),
        ({"dropout": 1.5}, "dropout is 1.5"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MultiHeadAttention(**{"d_model": 8, "num_heads": 4} | sizes)
    assert module(8, 3, d_k=2, d_v=2)(normal(1, 2, 8), normal(1, 2, 8), normal(1, 2, 8)).shape == (1, 2, 8)


@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        ((2, 3, 7), (2, 5, 8), (2, 5, 8), r"q has shape \(2, 3, 7\): use \(batch, length, 8\)"),
        ((2, 3, 8), (5, 8), (2, 5, 8), r"k has shape \(5, 8\)"),
        ((2, 3, 8), (2, 5, 8), (2, 4, 8), "use one batch, and one length"),
        ((2, 3, 8), (1, 5, 8), (1, 5, 8), "use one batch, and one length"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        module(8, 2)(normal(*q), normal(*k), normal(*v))
