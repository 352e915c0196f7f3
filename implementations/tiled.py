"""FlashAttention in torch operations: the tiles of the reference, accumulated as a fused kernel accumulates them.

Accumulators are float32 (float64 for float64), and weights are rounded once to the storage dtype before they multiply
the values. Neither the forward nor the backward pass holds scores of more than a tile.
"""

from __future__ import annotations

from typing import Any

import torch

from attnspec.implementations.torch_eager import check_call
from attnspec.reference.flash import TILE, flash_attention, flash_backward
from attnspec.spec.capabilities import FEATURES, Capabilities


class Flash(torch.autograd.Function):
    """`attnspec.reference.flash` as one operation with a gradient: query, key, value, attn_mask, sinks, slopes and the
    options give output and lse. The lse has a gradient too."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
        alibi_slopes: torch.Tensor | None,
        options: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output in the query's dtype, and the lse."""
        options = options | {"alibi_slopes": alibi_slopes}
        result = flash_attention(query, key, value, attn_mask=attn_mask, sinks=sinks, weights=query.dtype, **options)
        assert result.lse is not None  # flash_attention always gives it
        output = result.output.to(query.dtype)
        ctx.save_for_backward(query, key, value, attn_mask, sinks, alibi_slopes, output, result.lse)
        ctx.options = options
        return output, result.lse

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key, value, an additive mask, sinks and slopes, each in its argument's
        dtype."""
        query, key, value, attn_mask, sinks, alibi_slopes, output, lse = ctx.saved_tensors
        found = flash_backward(
            query, key, value, output, lse, grads[0], grad_lse=grads[1], attn_mask=attn_mask, sinks=sinks, **ctx.options
        )
        given = (query, key, value, attn_mask, sinks, alibi_slopes)
        return *(None if g is None else g.to(x.dtype) for g, x in zip(found, given, strict=True)), None


class Tiled:
    """Attention in tiles with an online softmax; accuracy class fused, causal triangle at the upper left."""

    name = "tiled"
    capabilities = Capabilities(features=tuple(name for name in FEATURES if name != "dropout_p"), head_dims=(1, 512))

    def __init__(self, tile: tuple[int, int] = TILE) -> None:
        self.tile = tile

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        key_lengths: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        window_size: tuple[int, int] | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return attention computed in tiles, and the lse where asked for.

        Arguments: `attnspec.spec.call.Call`. Returns output (batch, q_heads, q_len, value_dim) of the query's dtype,
        and lse (batch, q_heads, q_len) in float32, float64 for float64. Raises InputError where the tensors do not fit.
        Rules: `attention.output`, `flash.memory`, `flash.lse-recompute`. Source: Dao 2023, algorithms 1 and 2.
        """
        check_call(query, key, value, attn_mask, enable_gqa, key_lengths, window_size, softcap)
        options = {
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
            "key_lengths": key_lengths,
            "window_size": window_size,
            "softcap": softcap,
            "tile": self.tile,
            "accumulate": torch.float64 if query.dtype == torch.float64 else torch.float32,
        }
        output, lse = Flash.apply(query, key, value, attn_mask, sinks, alibi_slopes, options)  # type: ignore[no-untyped-call]
        return (output, lse) if return_lse else output


backend = Tiled()
