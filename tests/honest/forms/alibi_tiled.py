"""Attention with slopes of ALiBi a block of keys after the other, with exponentials of base 2 and weights in the
storage dtype, as FlashAttention has it."""

import math

import torch

BLOCK = 4


def target(query, key, value, alibi_slopes, *, is_causal=False, causal_alignment="upper_left", form="symmetric",
           alignment=None, scale=None, enable_gqa=False, key_lengths=None):  # fmt: skip
    dtype, (batch, heads, q_len, head_dim), k_len = query.dtype, query.shape, key.shape[2]
    if alibi_slopes.shape[-1] != heads or alibi_slopes.ndim > 2 or not alibi_slopes.is_floating_point():
        raise ValueError("a slope for each query head")
    if alibi_slopes.ndim == 2 and len(alibi_slopes) != batch:
        raise ValueError("a row of slopes for each batch element")
    wide = torch.promote_types(dtype, torch.float32)
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    output = torch.zeros(batch, heads, q_len, value.shape[-1], dtype=wide)
    lse = torch.full((batch, heads, q_len), -torch.inf, dtype=wide)
    for b in range(batch):
        length = k_len if key_lengths is None else int(key_lengths[b])
        corner = length - q_len if causal_alignment == "lower_right" else 0
        zero = length - q_len if (alignment or causal_alignment) == "lower_right" else 0
        for h in range(heads):
            kv = h // (heads // key.shape[1])
            slope = alibi_slopes[h] if alibi_slopes.ndim == 1 else alibi_slopes[b, h]
            top = torch.full((q_len, 1), -torch.inf, dtype=wide)
            total, mixed = torch.zeros_like(top), torch.zeros_like(output[b, h])
            for start in range(0, length, BLOCK):
                place = torch.arange(start, min(start + BLOCK, length))
                far = torch.arange(q_len)[:, None] + zero - place
                bias = slope.to(wide) * (far if form == "signed" else far.abs())
                scores = query[b, h].to(wide) @ key[b, kv, place].to(wide).T * scale - bias
                if is_causal:
                    scores = scores.masked_fill(place > torch.arange(q_len)[:, None] + corner, -torch.inf)
                above = torch.maximum(top, scores.amax(-1, keepdim=True))
                finite = above.masked_fill(above == -torch.inf, 0.0)
                parts = torch.exp2((scores - finite) * math.log2(math.e))
                kept = torch.exp2((top - finite) * math.log2(math.e))
                total = total * kept + parts.sum(-1, keepdim=True)
                mixed = mixed * kept + parts.to(dtype).to(wide) @ value[b, kv, place].to(wide)
                top = above
            output[b, h] = mixed / total.masked_fill(total == 0, 1.0)
            lse[b, h] = (top + torch.log(total)).squeeze(-1)
    return output.to(dtype), lse
