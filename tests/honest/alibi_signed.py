"""A backend whose ALiBi is signed and at the lower right corner: slope times (key - row - offset) is added."""

import torch
from honest_parts import inputs, softmax, wide

from attnspec.spec.capabilities import Capabilities


class Backend:
    """Declares its dialects; a forward pass alone."""

    name = "alibi_signed"
    capabilities = Capabilities(
        features=("attn_mask", "scale", "is_causal", "enable_gqa", "value_dim", "return_lse", "alibi_slopes"),
        causal_alignment="lower_right",
        alibi_form="signed",
    )

    @torch.no_grad()
    def __call__(
        self,
        query,
        key,
        value,
        *,
        attn_mask=None,
        is_causal=False,
        scale=None,
        enable_gqa=False,
        alibi_slopes=None,
        return_lse=False,
    ):
        """Return attention with a bias that grows along the keys."""
        q, k, v, scale = inputs(query, key, value, scale)
        scores = q @ k.transpose(-1, -2) * scale
        heads, q_len, k_len = scores.shape[1:]
        ahead = torch.arange(k_len) - torch.arange(q_len)[:, None] - (k_len - q_len)
        if alibi_slopes is not None:
            if tuple(alibi_slopes.shape) not in ((heads,), (len(scores), heads)):
                raise ValueError("alibi_slopes must hold one number a query head, or a batch element and query head")
            scores = scores + alibi_slopes.to(scores.dtype).reshape(-1, heads, 1, 1) * ahead
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask.expand(scores.shape), -torch.inf)
        elif attn_mask is not None:
            scores = scores + wide(attn_mask).expand(scores.shape)
        if is_causal:
            scores = scores.masked_fill(ahead > 0, -torch.inf)
        weights, lse = softmax(scores)
        output = (weights @ v).to(query.dtype)
        return (output, lse) if return_lse else output


attention = Backend()
