"""Kernels that do part of the work and refuse the rest in words: an honest "no" is no fault."""

import plain
import torch


def attention_of_two_dims(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if query.shape[-1] not in (64, 128) or value.shape[-1] != query.shape[-1]:
        raise ValueError(f"head_dim {query.shape[-1]} and {value.shape[-1]}: 64 and 128 are supported")
    return plain.attention(query, key, value, attn_mask, is_causal, scale)


def attention_with_full_masks(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if attn_mask is not None and tuple(attn_mask.shape) != (*query.shape[:3], key.shape[2]):
        raise ValueError(f"attn_mask has shape {tuple(attn_mask.shape)}: it is not broadcast here")
    return plain.attention(query, key, value, attn_mask, is_causal, scale)


def attention_with_one_mask(query, key, value, attn_mask=None, is_causal=False, scale=None, return_lse=False):
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask and is_causal together are not supported")
    return plain.attention(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)


def attention_without_masks(q, k, v):
    return plain.attention(q, k, v)


def attention_without_empty_tensors(query, key, value, is_causal=False, return_lse=False):
    if 0 in (query.numel(), key.numel()):
        raise ValueError("a tensor without elements is not supported")
    return plain.attention(query, key, value, is_causal=is_causal, return_lse=return_lse)


def attention_in_float32(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    if query.dtype != torch.float32:
        raise TypeError(f"{query.dtype} is not supported")
    return plain.attention(query, key, value, attn_mask, is_causal, scale)


def attention_contiguous(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    if not all(x.stride(-1) == 1 for x in (query, key, value) if x.numel()):
        raise ValueError("the last stride must be 1")
    return plain.attention(query, key, value, attn_mask, is_causal, scale)


def attention_of_equal_heads(query, key, value, attn_mask=None, is_causal=False, scale=None, return_lse=False):
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        raise ValueError("batch and heads of query, key and value must be equal")
    return plain.attention(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
