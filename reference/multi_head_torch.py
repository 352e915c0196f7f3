"""Multi-head attention with the parameters and the masks of `torch.nn.MultiheadAttention` (chapter "multi-head")."""

from __future__ import annotations

import torch

from attnspec.reference.multi_head import MultiHeadAttention
from attnspec.spec.errors import InputError


def from_torch(module: torch.nn.MultiheadAttention) -> MultiHeadAttention:
    """Return a module that computes what torch's does, with copies of its parameters, its dropout and its mode.

    The parameters keep their dtype. Tokens are (batch, length, dim) here, whatever torch's `batch_first` is. Raises
    InputError for `add_bias_kv` and `add_zero_attn`, which add keys that the formula does not have. Rule:
    `multi-head.projections`. Source: PyTorch, `torch.nn.MultiheadAttention`.
    """
    made = MultiHeadAttention(
        module.embed_dim,
        module.num_heads,
        module.dropout,
        bias=module.in_proj_bias is not None,
        kdim=module.kdim,
        vdim=module.vdim,
    )
    load_torch(made.to(module.out_proj.weight.dtype), module)
    return made.train(module.training)


def load_torch(target: MultiHeadAttention, module: torch.nn.MultiheadAttention) -> None:
    """Copy the parameters of torch's module into `target`, in the dtype of `target`.

    Torch packs W^Q, W^K and W^V in the rows of `in_proj_weight`, (3 * embed_dim, embed_dim), or keeps them apart where
    `kdim` or `vdim` differs from embed_dim; their biases are always packed. Raises InputError where a size or a bias
    differs, and for `add_bias_kv` and `add_zero_attn`. Rule: `multi-head.projections`.
    """
    if module.bias_k is not None or module.add_zero_attn:
        raise InputError("torch's module has add_bias_kv or add_zero_attn: build it without, the formula has neither")
    if (module.embed_dim, module.num_heads) != (target.d_model, target.num_heads):
        sizes = f"embed_dim {module.embed_dim} and {module.num_heads} heads"
        raise InputError(f"torch's module has {sizes}: use d_model {target.d_model} and {target.num_heads} heads")
    layers = (target.w_q, target.w_k, target.w_v, target.w_o)
    weights = (*projections(module), module.out_proj.weight)
    biases = (*module.in_proj_bias.chunk(3), module.out_proj.bias) if module.in_proj_bias is not None else (None,) * 4
    for name, layer, weight, bias in zip(("w_q", "w_k", "w_v", "w_o"), layers, weights, biases, strict=True):
        if weight.shape != layer.weight.shape:
            raise InputError(f"torch's {name} is {tuple(weight.shape)} and the target's {tuple(layer.weight.shape)}")
        if (bias is None) != (layer.bias is None):
            raise InputError(f"{name} has a bias in one module only: use the same `bias` in both")
        with torch.no_grad():
            layer.weight.copy_(weight)
            if bias is not None:
                layer.bias.copy_(bias)


def projections(module: torch.nn.MultiheadAttention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return W^Q (embed_dim, embed_dim), W^K (embed_dim, kdim) and W^V (embed_dim, vdim) of torch's module."""
    if module.in_proj_weight is None:
        return module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    w_q, w_k, w_v = module.in_proj_weight.chunk(3)
    return w_q, w_k, w_v


def mask_from_torch(
    num_heads: int, key_padding_mask: torch.Tensor | None = None, attn_mask: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Return the mask of `MultiHeadAttention.forward` that means the same as torch's two masks, or None for none.

    key_padding_mask: (batch, k_len); attn_mask: (q_len, k_len) or (batch * num_heads, q_len, k_len), batch first. In
    both True means drop; a float mask is added to the scores, and only 0 and -inf can be told here. Returns bool, True
    where the slot takes part, that broadcasts to (batch, num_heads, q_len, k_len). Raises InputError for other shapes
    or values. Rule: `multi-head.mask-convention`. Source: PyTorch, `torch.nn.MultiheadAttention.forward`.
    """
    mask = None
    if key_padding_mask is not None:
        if key_padding_mask.ndim != 2:
            raise InputError(f"key_padding_mask has shape {tuple(key_padding_mask.shape)}: use (batch, k_len)")
        mask = _kept(key_padding_mask, "key_padding_mask")[:, None, None, :]  # (batch, 1, 1, k_len)
    if attn_mask is not None:
        kept = _kept(attn_mask, "attn_mask")
        if kept.ndim == 3 and len(kept) % num_heads == 0:
            kept = kept.reshape(-1, num_heads, *kept.shape[1:])  # (batch, num_heads, q_len, k_len)
        elif kept.ndim != 2:
            shapes = f"(q_len, k_len) or (batch * {num_heads}, q_len, k_len)"
            raise InputError(f"attn_mask has shape {tuple(attn_mask.shape)}: use {shapes}")
        mask = kept if mask is None else mask & kept
    return mask


def _kept(mask: torch.Tensor, name: str) -> torch.Tensor:
    """Return True where a mask of torch's module lets a slot take part."""
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.dtype.is_floating_point or not bool(((mask == 0) | (mask == -torch.inf)).all()):
        raise InputError(f"{name} is no mask of True for drop, and no float mask of 0 and -inf: use one of them")
    return mask == 0
