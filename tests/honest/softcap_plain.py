"""A softcap in the textbook order, cap, bias, mask, over the whole score matrix; and three ways to take a tanh."""

import torch


def attention(
    query,
    key,
    value,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    window_size=None,
    softcap=None,
    return_lse=False,
    tanh=torch.tanh,
):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    left, right = (-1, -1) if window_size is None else window_size
    if left < -1 or right < -1:
        raise ValueError("a side of the window is below -1")
    cap = 0.0 if softcap is None else softcap
    if not 0 <= cap < float("inf"):
        raise ValueError("softcap must be 0 or more")
    q_len, k_len, head_dim = query.shape[2], key.shape[2], query.shape[3]
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scale = head_dim**-0.5 if scale is None else scale
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1).to(wide) for x in (key, value))
    scores = query.to(wide) @ key.transpose(-1, -2) * scale
    if cap > 0:
        scores = cap * tanh(scores / cap)
    visible = torch.ones(scores.shape, dtype=torch.bool)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(scores.shape)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask.to(wide)
    distance = torch.arange(k_len) - torch.arange(q_len)[:, None]
    if is_causal:
        visible = visible & (distance <= 0)
    if left >= 0:
        visible = visible & (distance >= -left)
    if right >= 0:
        visible = visible & (distance <= right)
    scores = scores.masked_fill(~visible, -torch.inf)
    top = torch.cat([scores, scores.new_full((*scores.shape[:-1], 1), -torch.inf)], -1).amax(-1, keepdim=True).detach()
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    lse = (top + torch.log(total)).masked_fill(empty, -torch.inf).squeeze(-1)
    output = ((weights / total) @ value).to(query.dtype)
    return (output, lse) if return_lse else output


def by_exponentials(x):
    """(e^x - e^-x) / (e^x + e^-x), kept in range."""
    x = x.clamp(-40.0, 40.0)
    rising, falling = torch.exp(x), torch.exp(-x)
    return (rising - falling) / (rising + falling)


def by_sigmoid(x):
    """2 sigmoid(2 x) - 1."""
    return 2.0 * torch.sigmoid(2.0 * x) - 1.0


class Fast(torch.autograd.Function):
    """The tanh of 16-bit kernels: off by up to 2^-11 of itself, as the hardware's approximation is."""

    @staticmethod
    def forward(ctx, x):
        t = torch.tanh(x) * (1 + 2.0**-11 * torch.sin(40.0 * x))
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx, grad):
        (t,) = ctx.saved_tensors
        return grad * (1 - t * t)


def with_tanh(tanh, of_16_bits=None):
    """Return `attention` with another tanh; of_16_bits: the one for 16-bit tensors."""

    def attention_with(
        query,
        key,
        value,
        attn_mask=None,
        is_causal=False,
        scale=None,
        enable_gqa=False,
        window_size=None,
        softcap=None,
        return_lse=False,
    ):
        chosen = of_16_bits if of_16_bits and query.dtype.itemsize == 2 else tanh
        options = (attn_mask, is_causal, scale, enable_gqa, window_size, softcap, return_lse)
        return attention(query, key, value, *options, chosen)

    return attention_with


attention_by_exponentials = with_tanh(by_exponentials)
attention_by_sigmoid = with_tanh(by_sigmoid)
attention_fast = with_tanh(torch.tanh, Fast.apply)
