"""Backends whose declarations the suite must take at their word."""

import math

import plain
import torch
from honest_parts import check_shapes, hide, inputs, result, softmax, wide

from attnspec.spec.capabilities import Capabilities

ORDERS = torch.Generator()  # its own, so that the caller's draws stay as they are


class Eager:
    """Stores its scores in the storage dtype, as a model's eager attention does, and says so."""

    name = "eager"
    capabilities = Capabilities(accuracy="eager", causal_alignment="upper_left")

    def __call__(
        self, query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False
    ):
        q, k, v, scale = inputs(query, key, value, scale)
        scores = wide(wide((q @ k.transpose(-1, -2)).to(query.dtype)).mul(scale).to(query.dtype))
        scores = wide(hide(scores, attn_mask, is_causal).to(query.dtype))
        weights, lse = softmax(scores)
        return result(wide(weights.to(query.dtype)) @ v, lse, query, return_lse)


class BaseTwo:
    """Gives the lse to base 2, as FlashInfer does."""

    name = "base_two"
    capabilities = Capabilities(lse_base="2")

    def __call__(self, query, key, value, return_lse=False, **options):
        output, lse = plain.attention(query, key, value, return_lse=True, **options)
        return (output, lse / math.log(2)) if return_lse else output


class AnyOrder:
    """Sums the keys in another order each time, as atomic additions do."""

    name = "any_order"
    capabilities = Capabilities(deterministic=False, refuses=(("is_causal",), ("attn_mask",)))

    def __call__(self, query, key, value, scale=None, enable_gqa=False, return_lse=False):
        check_shapes(query, key, value)
        order = torch.randperm(key.shape[2], generator=ORDERS)
        return plain.attention(query, key[:, :, order], value[:, :, order], scale=scale, return_lse=return_lse)


class Narrow:
    """Declares two dtypes, a range of head dims and few features, and raises on everything else."""

    name = "narrow"
    capabilities = Capabilities(
        features=("is_causal", "attn_mask.bool", "attn_mask.rank4", "return_lse"),
        dtypes=("bfloat16", "float32"),
        head_dims=(16, 64),
        refuses=(("attn_mask", "is_causal"),),
    )

    def __call__(self, query, key, value, attn_mask=None, is_causal=False, return_lse=False):
        assert query.dtype in (torch.bfloat16, torch.float32), f"{query.dtype} is not supported"
        assert 16 <= query.shape[-1] == value.shape[-1] <= 64, "head dims from 16 to 64 are supported, all equal"
        assert query.shape[:2] == key.shape[:2], "batch and heads must be equal"
        assert attn_mask is None or not is_causal, "attn_mask and is_causal together are not supported"
        assert attn_mask is None or (attn_mask.ndim == 4 and attn_mask.dtype == torch.bool), "mask not supported"
        return plain.attention(query, key, value, attn_mask, is_causal, return_lse=return_lse)


attention_eager, attention_base_two, attention_any_order, attention_narrow = Eager(), BaseTwo(), AnyOrder(), Narrow()
