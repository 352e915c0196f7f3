"""Attention with slopes of ALiBi in the storage dtype throughout, a class eager function around an additive mask."""

import torch


def target(query, key, value, alibi_slopes, *, is_causal=False, causal_alignment="upper_left", form="symmetric",
           alignment=None, scale=None, enable_gqa=False, key_lengths=None):  # fmt: skip
    batch, heads, q_len, head_dim = query.shape
    if alibi_slopes.dtype not in (torch.float32, torch.float64) or alibi_slopes.shape[-1] != heads:
        raise ValueError("a slope for each query head, in float32")
    if alibi_slopes.ndim > 1 and alibi_slopes.shape[:-1] != (batch,):
        raise ValueError("a row of slopes for each batch element")
    key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    keys, rows = torch.arange(key.shape[2]), torch.arange(q_len)[:, None]
    ends = torch.full((batch,), len(keys)) if key_lengths is None else key_lengths
    ends = ends[:, None, None, None]
    start = {"upper_left": torch.zeros_like(ends), "lower_right": ends - q_len}
    behind = rows + start[alignment or causal_alignment] - keys
    far = behind if form == "signed" else behind.abs()
    mask = (-alibi_slopes.reshape(-1, heads)[..., None, None] * far).to(query.dtype)
    hidden = keys >= ends
    if is_causal:
        hidden = hidden | (keys > rows + start[causal_alignment])
    scores = query @ key.mT * (head_dim**-0.5 if scale is None else scale) + mask
    hidden = hidden.expand(scores.shape)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
    return weights @ value
