"""A backend whose ALiBi counts from the upper left and whose causal triangle ends at the lower right; gradients by
autograd, of slopes too."""

import torch
from honest_parts import hide, inputs, result, softmax

from attnspec.spec.capabilities import FEATURES, LATER, Capabilities

MORE = ("key_lengths", "alibi_slopes", "backward", "grad_alibi_slopes")


class Mixed:
    """Declares both corners."""

    name = "alibi_mixed"

    def __init__(self, causal, alibi):
        self.capabilities = Capabilities(
            features=(*(name for name in FEATURES if name not in LATER), *MORE),
            causal_alignment=causal,
            alibi_alignment=alibi,
        )

    def origin(self, first):
        """Where ALiBi counts from. first: the key on the diagonal of row 0, by corner."""
        return first["upper_left"]

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
        key_lengths=None,
        alibi_slopes=None,
        return_lse=False,
    ):
        """Return attention with a bias that falls on both sides of its own diagonal."""
        q, k, v, scale = inputs(query, key, value, scale)
        (batch, heads, q_len), k_len = q.shape[:3], k.shape[2]
        rows, keys = torch.arange(q_len)[:, None], torch.arange(k_len)
        end = torch.full((batch,), k_len) if key_lengths is None else key_lengths
        if end.shape != (batch,) or end.dtype not in (torch.int32, torch.int64) or ((end < 0) | (end > k_len)).any():
            raise ValueError("key_lengths must hold a length a batch element")
        end = end[:, None, None, None]
        absent = keys >= end
        k, v = (x.masked_fill(absent.transpose(-1, -2), 0.0) for x in (k, v))
        first = {"upper_left": 0, "lower_right": end - q_len}
        scores = q @ k.transpose(-1, -2) * scale
        if alibi_slopes is not None:
            if tuple(alibi_slopes.shape) not in ((heads,), (batch, heads)):
                raise ValueError("alibi_slopes must hold one number a query head, or a batch element and query head")
            distance = (rows + self.origin(first) - keys).abs()
            scores = scores - alibi_slopes.to(scores.dtype).reshape(-1, heads, 1, 1) * distance
        scores = hide(scores, attn_mask, False).masked_fill(absent, -torch.inf)
        if is_causal:
            scores = scores.masked_fill(keys > rows + first[self.capabilities.causal_alignment], -torch.inf)
        weights, lse = softmax(scores)
        return result(weights @ v, lse, query, return_lse)


attention = Mixed("lower_right", "upper_left")
