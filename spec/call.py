"""The call: what goes into an attention kernel and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


UNTOLD = ("grad_", "alibi_form", "alibi_alignment", "learned_slopes")  # how fields begin that no kernel is handed


@dataclass(frozen=True)
class Call:
    """One attention call; names and defaults are those of PyTorch's `scaled_dot_product_attention`.

    query: (batch, q_heads, q_len, head_dim); key: (batch, kv_heads, k_len, head_dim); value: (batch, kv_heads, k_len,
    value_dim), all of one dtype. attn_mask: bool (True takes part) or floating point (added to the scaled scores), of
    any shape that broadcasts to (batch, q_heads, q_len, k_len). dropout_p: the probability that a weight is dropped, 0
    to 1. scale: None is 1/sqrt(head_dim). key_lengths: (batch,), int32, how many keys of each batch element exist;
    None is all. window_size: (left, right), how many keys before and after the one on its diagonal a row sees, -1 for
    any number; None for all. softcap: c of c tanh(s / c), taken of the scaled scores before bias and masks; 0 and None
    are none. sinks: (q_heads,), a score of each head that takes a share of every row's weight. alibi_slopes:
    (q_heads,) or (batch, q_heads), by how much a score falls with each step from the diagonal, and alibi_form,
    alibi_alignment: what a step is (dialects, which no kernel is told). learned_slopes: whether the slopes ask for a
    gradient where the others do. grad_output: (batch, q_heads, q_len,
    value_dim), of the query's dtype, and grad_lse: (batch, q_heads, q_len), of the lse's dtype: what flows back from a
    loss, where gradients are asked for. Rules: chapter "notation".
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    return_lse: bool = False
    key_lengths: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    window_size: tuple[int, int] | None = None
    alibi_slopes: torch.Tensor | None = None
    alibi_form: str = "symmetric"
    alibi_alignment: str = "upper_left"
    learned_slopes: bool = False
    softcap: float | None = None
    grad_output: torch.Tensor | None = None
    grad_lse: torch.Tensor | None = None

    def options(self) -> dict[str, object]:
        """Return the keyword arguments that differ from their defaults: all that a kernel needs to be told."""
        given = {f.name: getattr(self, f.name) for f in fields(self)[3:] if not f.name.startswith(UNTOLD)}
        if self.dropout_p == 0:
            del given["dropout_p"]
        return {name: value for name, value in given.items() if value is not None and value is not False}

    def differentiable(self) -> dict[str, torch.Tensor]:
        """Return the tensors that have a gradient, by name: query, key, value, an additive mask, sinks, and slopes that
        ask for one."""
        given = {name: getattr(self, name) for name in Gradients._fields}
        if not self.learned_slopes:
            del given["alibi_slopes"]
        return {name: x for name, x in given.items() if x is not None and x.dtype.is_floating_point}

    def but(self, **changes: Any) -> Call:
        """Return the call with some arguments changed."""
        return replace(self, **changes)


class Result(NamedTuple):
    """What a call gives. output: (batch, q_heads, q_len, value_dim), the query's dtype; lse: (batch, q_heads, q_len),
    natural logarithm, float32 or float64; weights: (batch, q_heads, q_len, k_len)."""

    output: torch.Tensor
    lse: torch.Tensor | None = None
    weights: torch.Tensor | None = None


class Gradients(NamedTuple):
    """The gradients of a loss, each of its input's shape; attn_mask is None for a bool mask or none, sinks and
    alibi_slopes for none."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
