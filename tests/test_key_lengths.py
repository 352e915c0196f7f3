"""Key lengths: by hand, against the call for each batch element alone, the exact oracle, and planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.implementations import grouped, torch_eager
from attnspec.reference import exact, lengths, masks
from attnspec.reference.attention import attention
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError

BACKENDS = {"torch_eager": torch_eager.backend, "grouped": grouped.backend}
CLOSE = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 2e-1}
ALIGNMENTS = ("upper_left", "lower_right")


# ---------------------------------------------------------------- helpers


@dataclass(frozen=True)
class Case:
    """One drawn call: sizes, a length for each batch element, options, and the seed of its numbers."""

    lengths: tuple[int, ...]
    q_len: int = 4
    k_len: int = 6
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 3
    value_dim: int = 5
    kv_batch: int | None = None
    causal: str | None = None
    mask: str | None = None
    seed: int = 0

    def tensors(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value."""
        batch, kv_batch = len(self.lengths), len(self.lengths) if self.kv_batch is None else self.kv_batch
        draw = torch.Generator().manual_seed(self.seed)
        shapes = (
            (batch, self.q_heads, self.q_len, self.head_dim),
            (kv_batch, self.kv_heads, self.k_len, self.head_dim),
            (kv_batch, self.kv_heads, self.k_len, self.value_dim),
        )
        query, key, value = (torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)
        return query, key, value

    def options(self, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
        """Return the options of the call; the mask has one content for each batch element, head and row."""
        options: dict[str, Any] = {"key_lengths": torch.tensor(self.lengths, dtype=torch.int64), "enable_gqa": True}
        if self.causal:
            options |= {"is_causal": True, "causal_alignment": self.causal}
        if self.mask:
            shape = (len(self.lengths), self.q_heads, self.q_len, self.k_len)
            bias = torch.randn(shape, generator=torch.Generator().manual_seed(self.seed + 1), dtype=torch.float64)
            options["attn_mask"] = bias > -1 if self.mask == "bool" else bias.to(dtype)
        return options


def alone(case: Case) -> Result:
    """Return the results of every batch element alone, with what is absent cut off."""
    query, key, value = case.tensors()
    options = case.options()
    del options["key_lengths"]
    results = []
    for b, n in enumerate(case.lengths):
        kv = slice(0, 1) if key.shape[0] == 1 else slice(b, b + 1)
        mask = options.get("attn_mask")
        cut = options if mask is None else options | {"attn_mask": mask[b : b + 1, ..., :n]}
        results.append(attention(query[b : b + 1], key[kv, :, :n], value[kv, :, :n], **cut))
    lse = [result.lse for result in results if result.lse is not None]
    return Result(torch.cat([result.output for result in results]), torch.cat(lse))


def same(left: Result, right: Result, within: float = 0.0) -> bool:
    """Whether output and lse agree; NaN and infinities only with their like."""
    pairs = [(a.double(), b.double()) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    return all(torch.allclose(a, b, rtol=within, atol=within, equal_nan=True) for a, b in pairs[:2])


def spoiled(tensor: torch.Tensor, case: Case, content: float) -> torch.Tensor:
    """Return a key, value or mask, (batch, heads, k_len, any), with what is absent replaced."""
    there = torch.arange(case.k_len) < torch.tensor(case.lengths)[:, None]
    return torch.where(there[:, None, :, None], tensor, content)


cases = st.builds(
    Case,
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    q_len=st.integers(1, 8),
    kv_heads=st.sampled_from([1, 2, 4]),
    value_dim=st.sampled_from([3, 5]),
    kv_batch=st.sampled_from([None, 1]),
    causal=st.sampled_from([None, *ALIGNMENTS]),
    mask=st.sampled_from([None, "bool", "float"]),
    seed=st.integers(0, 2**31),
)
drawn = settings(derandomize=True, deadline=None, max_examples=80, database=None)


# ---------------------------------------------------------------- by hand


def test_the_mean_over_the_keys_that_exist() -> None:
    query, key = torch.ones(4, 1, 1, 2), torch.ones(4, 1, 3, 2)
    value = torch.tensor([1.0, 2.0, 6.0]).reshape(1, 1, 3, 1).expand(4, 1, 3, 1)
    result = attention(query, key, value, scale=0, key_lengths=torch.tensor([3, 2, 1, 0]))
    assert result.output.flatten().tolist() == [3.0, 1.5, 1.0, 0.0]
    assert result.lse is not None
    assert result.lse.flatten().tolist() == [math.log(3), math.log(2), 0.0, -math.inf]


@pytest.mark.parametrize(
    ("alignment", "expected"),
    [
        ("lower_right", "11110 11111 11000 11100 00000 10000 00000 00000"),
        ("upper_left", "10000 11000 10000 11000 10000 10000 00000 00000"),
    ],
)
def test_the_visible_sets_of_the_chapter(alignment: str, expected: str) -> None:
    seen = masks.visible((4, 1, 2, 5), None, True, alignment, torch.tensor([5, 3, 1, 0]))
    assert " ".join("".join(str(int(x)) for x in row) for row in seen.reshape(8, 5)) == expected


def test_absent_keys_are_cleared_for_the_batch_element_that_lacks_them() -> None:
    keys = torch.tensor([1.0, torch.nan]).reshape(1, 1, 2, 1)
    cleared = lengths.clear_absent(keys, 2, torch.tensor([1, 2], dtype=torch.int32))
    assert cleared.shape == (2, 1, 2, 1)
    assert cleared[0].flatten().tolist() == [1.0, 0.0]
    assert cleared[1].isnan().flatten().tolist() == [False, True]


# ---------------------------------------------------------------- laws


@drawn
@given(cases)
def test_each_batch_element_is_the_call_for_it_alone(case: Case) -> None:
    assert same(attention(*case.tensors(), **case.options()), alone(case), 1e-13)


@drawn
@given(cases)
def test_the_exact_oracle_agrees(case: Case) -> None:
    query, key, value = (x.numpy() for x in case.tensors())
    options = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in case.options().items()}
    truth = exact.attention(query, key, value, **options)
    result = attention(*case.tensors(), **case.options())
    assert same(result, Result(torch.from_numpy(truth.output), torch.from_numpy(truth.lse)), 1e-13)


@pytest.mark.parametrize("causal", [None, *ALIGNMENTS])
def test_lengths_are_a_mask_of_minus_infinity_where_the_absent_is_finite(causal: str | None) -> None:
    case = Case((6, 2, 0, 5), causal=causal)
    there = (torch.arange(6) < torch.tensor(case.lengths)[:, None])[:, None, None, :]
    corner = masks.visible((4, 4, 4, 6), None, causal is not None, causal or "upper_left", torch.tensor(case.lengths))
    result = attention(*case.tensors(), **case.options())
    for mask in (there & corner, torch.where(there & corner, 0.0, -torch.inf).double()):
        assert same(result, attention(*case.tensors(), attn_mask=mask, enable_gqa=True))


def test_full_lengths_change_no_bit() -> None:
    case = Case((6, 6, 6))
    plain = attention(*case.tensors(), enable_gqa=True, is_causal=True, causal_alignment="lower_right")
    full = Case((6, 6, 6), causal="lower_right").options()
    assert same(attention(*case.tensors(), **full), plain)
    assert same(attention(*case.tensors(), **full | {"key_lengths": full["key_lengths"].int()}), plain)


def test_one_key_batch_has_the_lengths_of_the_query_batch() -> None:
    case = Case((6, 1, 3), kv_batch=1, causal="lower_right")
    query, key, value = case.tensors()
    expanded = attention(query, key.repeat(3, 1, 1, 1), value.repeat(3, 1, 1, 1), **case.options())
    assert same(attention(query, key, value, **case.options()), expanded)


@pytest.mark.parametrize("content", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("causal", [None, *ALIGNMENTS])
def test_what_is_absent_never_shows(causal: str | None, content: float) -> None:
    case = Case((6, 2, 0, 5), causal=causal, mask="float")
    query, key, value = case.tensors()
    options = case.options()
    mask = spoiled(options["attn_mask"].transpose(2, 3), case, content).transpose(2, 3)
    changed = (spoiled(key, case, content), spoiled(value, case, content))
    clean = attention(query, key, value, **options)
    assert same(attention(query, *changed, **options | {"attn_mask": mask}), clean)
    numbers = {name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    truth = exact.attention(query.numpy(), key.numpy(), value.numpy(), **numbers)
    dirty = exact.attention(
        query.numpy(), *(x.numpy() for x in changed), **numbers | {"attn_mask": mask.contiguous().numpy()}
    )
    assert truth.output.tobytes() == dirty.output.tobytes()
    assert truth.lse.tobytes() == dirty.lse.tobytes()


def test_nan_that_exists_comes_through() -> None:
    case = Case((6, 3))
    query, key, value = case.tensors()
    value[:, :, 3] = torch.nan
    output = attention(query, key, value, **case.options()).output
    assert output[0].isnan().all()
    assert not output[1].isnan().any()


@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        (attention, Case((6, 2, 0), causal="lower_right")),
        (torch_eager.backend, Case((6, 2))),
        (grouped.backend, Case((6, 2))),
    ],
)
def test_gradients_stay_finite_and_are_0_for_what_is_absent(kernel: Callable[..., Any], case: Case) -> None:
    query, key, value = case.tensors()
    key, value = spoiled(key, case, torch.nan), spoiled(value, case, torch.inf)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    result = kernel(*leaves, **case.options())
    (result.output if kernel is attention else result).sum().backward()
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    assert len(gradients) == 3
    assert all(gradient.isfinite().all() and (gradient[0] != 0).any() for gradient in gradients)
    assert all((gradient == spoiled(gradient, case, 0.0)).all() for gradient in gradients[1:])


# ---------------------------------------------------------------- backends


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", BACKENDS)
@settings(parent=drawn, max_examples=25)
@given(case=cases)
def test_backends_take_key_lengths(name: str, dtype: torch.dtype, case: Case) -> None:
    backend = BACKENDS[name]
    if case.causal not in (None, backend.capabilities.causal_alignment):
        return
    tensors, options = case.tensors(dtype), case.options(dtype)
    expected = attention(*tensors, **options)
    options.pop("causal_alignment", None)
    result = Result(*backend(*tensors, **options, return_lse=True))
    assert result.output.dtype == dtype
    assert same(result, expected, CLOSE[dtype])
    if case.kv_batch is None:
        query, key, value = tensors
        dirty = (spoiled(key, case, torch.nan), spoiled(value, case, torch.inf))
        assert same(Result(*backend(query, *dirty, **options, return_lse=True)), result)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("given_lengths", "message"),
    [
        (torch.tensor([7, 1]), "7"),
        (torch.tensor([1, -1]), "-1"),
        (torch.tensor([1]), "(1,)"),
        (torch.tensor([[1, 1]]), "(1, 2)"),
        (torch.tensor(1), "()"),
        (torch.tensor([1.0, 1.0]), "float32"),
        (torch.tensor([True, True]), "bool"),
        (torch.tensor([1, 1], dtype=torch.uint8), "uint8"),
    ],
)
def test_lengths_that_do_not_fit_are_told_in_one_line(given_lengths: torch.Tensor, message: str) -> None:
    tensors = Case((1, 1), q_heads=2).tensors()
    calls: tuple[Callable[[], object], ...] = (
        lambda: attention(*tensors, key_lengths=given_lengths),
        lambda: masks.visible((2, 2, 4, 6), key_lengths=given_lengths),
        lambda: exact.attention(*(x.numpy() for x in tensors), key_lengths=given_lengths.numpy()),
        lambda: torch_eager.backend(*tensors, key_lengths=given_lengths),
        lambda: grouped.backend(*tensors, key_lengths=given_lengths),
    )
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert "key_lengths" in str(caught.value)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_both_ends_of_the_range_are_legal() -> None:
    case = Case((0, 6))
    lse = attention(*case.tensors(), **case.options()).lse
    assert lse is not None
    assert lse.isfinite().all(-1).all(-1).tolist() == [False, True]
    none = np.ones((1, 1, 0, 1))
    nothing = exact.attention(np.ones((1, 1, 1, 1)), none, none, key_lengths=np.array([0]))
    assert (nothing.output.item(), nothing.lse.item()) == (0.0, -math.inf)


# ---------------------------------------------------------------- planted faults


def first_for_all(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
    given_lengths = options["key_lengths"]
    return attention(query, key, value, **options | {"key_lengths": given_lengths[:1].expand_as(given_lengths)})


def one_more(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
    return attention(query, key, value, **options | {"key_lengths": (options["key_lengths"] + 1).clamp(max=6)})


def one_less(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
    return attention(query, key, value, **options | {"key_lengths": (options["key_lengths"] - 1).clamp(min=0)})


def corner_of_the_storage(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
    """Causal at the last slot, not at the last key that exists."""
    triangle = masks.causal(query.shape[2], key.shape[2], options.pop("causal_alignment"))
    return attention(query, key, value, **options | {"is_causal": False, "attn_mask": triangle})


def upper_corner(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
    return attention(query, key, value, **options | {"causal_alignment": "upper_left"})


def masked_only(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Result:
    """Absent keys have weight 0 and are multiplied all the same."""
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    seen = masks.visible(shape, None, True, options["causal_alignment"], options["key_lengths"])
    return attention(query, key, value, attn_mask=seen, enable_gqa=True)


FAULTS = (first_for_all, one_more, one_less, corner_of_the_storage, upper_corner, masked_only)


@pytest.mark.parametrize("kernel", [attention, *FAULTS], ids=lambda kernel: kernel.__name__)
def test_the_law_tells_right_from_wrong(kernel: Callable[..., Result]) -> None:
    case = Case((4, 2, 5, 3), causal="lower_right")
    query, key, value = case.tensors()
    found = kernel(query, spoiled(key, case, torch.nan), spoiled(value, case, torch.nan), **case.options())
    assert same(found, alone(case), 1e-13) == (kernel is attention)


@pytest.mark.parametrize("kernel", FAULTS[:-1], ids=lambda kernel: kernel.__name__)
def test_wrong_lengths_show_where_all_memory_is_finite(kernel: Callable[..., Result]) -> None:
    case = Case((4, 2, 5, 3), causal="lower_right")
    found = kernel(*case.tensors(), **case.options())
    assert not same(found, alone(case), 1e-3)
