"""The float64 reference as a backend, so that the suite can be pointed at its own yardstick."""

from __future__ import annotations

import torch

from attnspec.reference.attention import attention
from attnspec.spec.capabilities import FEATURES, Capabilities


class Reference:
    """`attnspec.reference.attention`, rounded to the query's dtype; accuracy class fused, causal upper left."""

    name = "reference"
    capabilities = Capabilities(features=tuple(name for name in FEATURES if name != "dropout_p"), head_dims=(1, 512))

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
        window_size: tuple[int, int] | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the reference's output in the query's dtype, and its lse in float32 (float64 for float64) where asked.

        Arguments and shapes: `attnspec.reference.attention.attention`. Torch rounds float64 to a 16-bit dtype by way of
        float32, which moves a value by a float32 rounding at most (2^-24 of it, a term of every budget) and, unlike a
        rounding of our own, keeps the gradient. Raises InputError where the tensors do not fit. Rule:
        `attention.output`.
        """
        result = attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            key_lengths=key_lengths,
            window_size=window_size,
            sinks=sinks,
            alibi_slopes=alibi_slopes,
            softcap=softcap,
        )
        output = result.output.to(query.dtype)  # (batch, q_heads, q_len, value_dim)
        if not return_lse:
            return output
        assert result.lse is not None  # the reference always gives it
        return output, result.lse.to(torch.float64 if query.dtype == torch.float64 else torch.float32)


backend = Reference()
