"""The multi-head module against `torch.nn.MultiheadAttention`: parameters, masks, and what has no translation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attnspec.reference.multi_head import MultiHeadAttention
from attnspec.reference.multi_head_torch import from_torch, load_torch, mask_from_torch
from attnspec.spec.errors import InputError

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal float64 numbers of a fixed stream."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 5, "vdim": 7}, {"vdim": 3, "bias": False}], ids=str)
@pytest.mark.parametrize("masked", ["none", "padding", "attn", "float", "per head", "both"])
def test_agrees_with_torch(options: dict[str, Any], masked: str) -> None:
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64, **options).eval()
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # torch starts from 0
    q, k, v = normal(2, 4, 12), normal(2, 6, theirs.kdim, seed=1), normal(2, 6, theirs.vdim, seed=2)
    padding = torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 1]]).bool()
    attn = torch.ones(4, 6).triu(1).bool()
    per_head = (normal(6, 4, 6, seed=3) > 0.5) & torch.tensor([0, 1, 1, 1, 1, 1]).bool()
    masks: dict[str, torch.Tensor] = {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "attn": {"attn_mask": attn},
        "float": {"attn_mask": torch.zeros(4, 6).double().masked_fill(attn, -torch.inf)},
        "per head": {"attn_mask": per_head},
        "both": {"attn_mask": per_head, "key_padding_mask": padding},
    }[masked]  # type: ignore[assignment]
    expected, weights = theirs(q, k, v, average_attn_weights=False, **masks)
    ours, mask = from_torch(theirs), mask_from_torch(3, **masks)
    torch.testing.assert_close(ours(q, k, v, mask), expected, **CLOSE)
    torch.testing.assert_close(ours.heads(q, k, v, mask).weights, weights, **CLOSE)


def test_an_empty_row_is_nan_in_torch_and_the_bias_here() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64).eval()
    nn.init.normal_(theirs.out_proj.bias)
    x, drop = normal(1, 3, 8), torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 1]]).bool()
    expected, _ = theirs(x, x, x, attn_mask=drop)
    found = from_torch(theirs)(x, x, x, mask_from_torch(2, attn_mask=drop))
    assert expected[0, 1].isnan().all()
    assert found[0, 1].equal(theirs.out_proj.bias)
    torch.testing.assert_close(found[0, [0, 2]], expected[0, [0, 2]], **CLOSE)


def test_loading_keeps_dtype_dropout_and_mode_and_copies() -> None:
    theirs = nn.MultiheadAttention(8, 2, dropout=0.3, dtype=torch.bfloat16)
    ours = from_torch(theirs)
    assert (ours.w_q.weight.dtype, ours.dropout, ours.training) == (torch.bfloat16, 0.3, True)
    before = ours.w_q.weight.clone()
    nn.init.zeros_(theirs.in_proj_weight)
    assert ours.w_q.weight.equal(before)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ({}, {"add_bias_kv": True}, "add_bias_kv or add_zero_attn"),
        ({}, {"add_zero_attn": True}, "add_bias_kv or add_zero_attn"),
        ({}, {"bias": False}, "w_q has a bias in one module only"),
        ({}, {"kdim": 5}, r"torch's w_k is \(8, 5\) and the target's \(8, 8\)"),
        ({"num_kv_heads": 1}, {}, r"torch's w_k is \(8, 8\) and the target's \(4, 8\)"),
        ({"num_heads": 4}, {}, "embed_dim 8 and 2 heads"),
    ],
)
def test_what_cannot_be_loaded_is_refused(target: dict[str, int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_torch(MultiHeadAttention(8, **{"num_heads": 2} | target), nn.MultiheadAttention(8, 2, **options))


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"attn_mask": torch.zeros(2, 3, 4)}, "attn_mask has shape"),
        ({"attn_mask": torch.full((3, 4), -1e9)}, "attn_mask is no mask of True for drop"),
        ({"attn_mask": torch.ones(3, 4).int()}, "attn_mask is no mask of True for drop"),
        ({"key_padding_mask": torch.zeros(4)}, "key_padding_mask has shape"),
    ],
)
def test_masks_of_torch_without_a_translation_are_refused(masks: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mask_from_torch(3, **masks)
