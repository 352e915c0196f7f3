"""Multi-head attention, Concat(head_1, ..., head_h) W^O, the module around the kernel (chapter "multi-head")."""

from __future__ import annotations

import torch

from attnspec.reference import dropout as weight_dropout
from attnspec.reference import grouped_heads
from attnspec.reference.attention import attention
from attnspec.spec.call import Result
from attnspec.spec.errors import InputError


class MultiHeadAttention(torch.nn.Module):
    """head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V);  MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O.

    The parameters have torch's default dtype, as those of any module, so that a state of the source article's module
    loads into this one. The mathematics is float64: parameters and inputs, which float64 holds exactly, are widened,
    and the result is rounded once, to the dtype of `q`. So the module takes the place of a float32 one, and after
    `.double()`, with float64 inputs, nothing is rounded to less.

    Two differences from the article's code. A masked slot is excluded exactly, as by a score of -inf, not filled with
    -1e9 (`mask.finite-bias`: a finite score never masks). So a row that sees no key gives 0 before the output
    projection, not the mean of V (`multi-head.empty-row`).

    Rules: `multi-head.projections`, `multi-head.split`, `multi-head.concat-order`, `multi-head.output-projection`,
    `multi-head.mask-convention`, `multi-head.cross-lengths`, `multi-head.heads-divide`, `multi-head.empty-row`.
    Source: Vaswani et al. 2017, section 3.2.2; the source article, section 5.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        dropout: float = 0.1,
        *,
        bias: bool = True,
        d_k: int | None = None,
        d_v: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        """Make the four projections.

        d_model: elements of a query token and of an output token. num_heads: query heads. dropout: the probability
        that a weight is dropped in training. bias: whether projections add one. d_k, d_v: elements of one head's
        queries and values; None is d_model / num_heads. kdim, vdim: elements of a key and of a value token; None is
        d_model. num_kv_heads: key and value heads; None is num_heads, 1 is multi-query attention. Raises InputError
        for a size below 1, for heads that do not divide, and for a dropout outside [0, 1].
        """
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        kdim = d_model if kdim is None else kdim
        vdim = d_model if vdim is None else vdim
        sizes = {"d_model": d_model, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "kdim": kdim, "vdim": vdim}
        check_sizes(sizes | {"d_k": 1 if d_k is None else d_k, "d_v": 1 if d_v is None else d_v})
        if d_model % num_heads and None in (d_k, d_v):
            raise InputError(f"d_model {d_model} is no multiple of num_heads {num_heads}: use one, or give d_k, d_v")
        if num_heads % num_kv_heads:
            raise InputError(f"num_heads {num_heads} is no multiple of num_kv_heads {num_kv_heads}: use one")
        weight_dropout.check_probability(dropout)
        self.d_model, self.kdim, self.vdim = d_model, kdim, vdim
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.d_k = d_model // num_heads if d_k is None else d_k
        self.d_v = d_model // num_heads if d_v is None else d_v
        self.dropout = dropout
        self.w_q = torch.nn.Linear(d_model, num_heads * self.d_k, bias=bias)
        self.w_k = torch.nn.Linear(kdim, num_kv_heads * self.d_k, bias=bias)
        self.w_v = torch.nn.Linear(vdim, num_kv_heads * self.d_v, bias=bias)
        self.w_o = torch.nn.Linear(num_heads * self.d_v, d_model, bias=bias)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        is_causal: bool = False,
        causal_alignment: str = "upper_left",
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Return MultiHead(Q, K, V), (batch, q_len, d_model), in the dtype of q.

        q: (batch, q_len, d_model); k: (batch, k_len, kdim); v: (batch, k_len, vdim), of one floating dtype. mask:
        bool, integer or float, 0 where a slot is masked and positive elsewhere, of a shape that broadcasts to (batch,
        num_heads, q_len, k_len): (batch, 1, 1, k_len) for padding, (batch, 1, q_len, k_len) for a mask of each row.
        is_causal: hides the keys beyond the diagonal `causal_alignment` too. generator: of the dropout, which is drawn
        in training mode only. Raises InputError where shapes, dtypes or the mask do not fit.
        """
        heads = self.heads(q, k, v, mask, is_causal=is_causal, causal_alignment=causal_alignment, generator=generator)
        concat = concat_heads(heads.output)  # (batch, q_len, num_heads * d_v)
        return project(concat, self.w_o).to(q.dtype)

    def heads(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        is_causal: bool = False,
        causal_alignment: str = "upper_left",
        generator: torch.Generator | None = None,
    ) -> Result:
        """Return what the heads give before they are concatenated, in float64.

        The arguments are those of `forward`. Returns output (batch, num_heads, q_len, d_v), lse (batch, num_heads,
        q_len) and weights (batch, num_heads, q_len, k_len), after dropout in training mode. Raises InputError as
        `forward` does.
        """
        self._check_tokens(q, k, v)
        query = split_heads(project(q, self.w_q), self.num_heads)  # (batch, num_heads, q_len, d_k)
        key = split_heads(project(k, self.w_k), self.num_kv_heads)  # (batch, num_kv_heads, k_len, d_k)
        value = split_heads(project(v, self.w_v), self.num_kv_heads)  # (batch, num_kv_heads, k_len, d_v)
        attended = attention(
            query,
            key,
            value,
            attn_mask=None if mask is None else visible_slots(mask),
            is_causal=is_causal,
            causal_alignment=causal_alignment,
            enable_gqa=True,
        )
        if not self.training:
            return attended
        assert attended.weights is not None
        keep = weight_dropout.keep_mask(attended.weights.shape, self.dropout, generator)
        weights = weight_dropout.apply(attended.weights, keep, self.dropout)  # (batch, num_heads, q_len, k_len)
        value = grouped_heads.expand(value, self.num_heads)  # (batch, num_heads, k_len, d_v)
        return Result(output=weights @ value, lse=attended.lse, weights=weights)

    def _check_tokens(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Raise InputError where the tokens do not fit the projections or each other."""
        for name, tokens, dim in (("q", q, self.d_model), ("k", k, self.kdim), ("v", v, self.vdim)):
            if tokens.ndim != 3 or tokens.shape[2] != dim:
                raise InputError(f"{name} has shape {tuple(tokens.shape)}: use (batch, length, {dim})")
            if tokens.dtype != q.dtype or not tokens.dtype.is_floating_point:
                raise InputError(f"{name} is {tokens.dtype} and q is {q.dtype}: use one floating dtype")
        if k.shape[:2] != v.shape[:2] or k.shape[0] != q.shape[0]:
            batches = f"q {tuple(q.shape[:2])}, k {tuple(k.shape[:2])}, v {tuple(v.shape[:2])}"
            raise InputError(f"(batch, length) do not fit: {batches}; use one batch, and one length for k and v")


def project(tokens: torch.Tensor, layer: torch.nn.Linear) -> torch.Tensor:
    """Return x W^T + b in float64: (batch, length, out) from (batch, length, in). Rules: `multi-head.projections`,
    `multi-head.output-projection`."""
    projected = tokens.double() @ layer.weight.double().T  # (batch, length, out)
    return projected if layer.bias is None else projected + layer.bias.double()


def split_heads(tokens: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return heads, (batch, num_heads, length, dim), of projected tokens, (batch, length, num_heads * dim).

    Head i takes the columns i * dim to (i + 1) * dim - 1. Raises InputError where the last dimension is no multiple of
    num_heads. Rule: `multi-head.split`.
    """
    batch, length, width = tokens.shape
    if width % num_heads:
        raise InputError(f"{width} columns do not split into {num_heads} heads: use a multiple")
    return tokens.reshape(batch, length, num_heads, width // num_heads).transpose(1, 2)


def concat_heads(heads: torch.Tensor) -> torch.Tensor:
    """Return Concat(head_1, ..., head_h), (batch, length, num_heads * dim), of heads (batch, num_heads, length, dim).

    It is the inverse of `split_heads`. Rule: `multi-head.concat-order`.
    """
    batch, num_heads, length, dim = heads.shape
    return heads.transpose(1, 2).reshape(batch, length, num_heads * dim)


def visible_slots(mask: torch.Tensor) -> torch.Tensor:
    """Return a module's mask, 0 = masked, as a bool `attn_mask`, True where the slot takes part, of the same shape.

    mask: bool, integer or float. Raises InputError for a negative, infinite or NaN value: an additive mask, in which 0
    means the opposite. Rule: `multi-head.mask-convention`.
    """
    if mask.dtype == torch.bool:
        return mask
    if not bool(((mask >= 0) & (mask < torch.inf)).all()):
        raise InputError("mask holds a negative, infinite or NaN value: use 0 for masked and 1 for visible slots")
    return mask != 0


def check_sizes(sizes: dict[str, int]) -> None:
    """Raise InputError for a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} is {size}: use 1 or more")
