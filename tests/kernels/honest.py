"""An honest kernel: scores, softmax and sum in float32 (float64 for float64), one rounding at the end."""

import torch
from torch.nn.functional import pad


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scores = hide(scores_of(query, key, scale), attn_mask, is_causal)
    return finish(scores, value, query, return_lse)


def scores_of(query, key, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key = expand_heads(key, query.shape[1])
    return scale * (wide(query) @ wide(key).transpose(-1, -2))  # (batch, q_heads, q_len, k_len)


def hide(scores, attn_mask, is_causal):
    if is_causal:
        triangle = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~triangle, -torch.inf)
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + wide(attn_mask)


def finish(scores, value, query, return_lse):
    weights, lse = softmax(scores)
    output = (weights @ wide(expand_heads(value, query.shape[1]))).to(query.dtype)
    return (output, lse) if return_lse else output


def softmax(scores):
    peak = pad(scores, (0, 1), value=-torch.inf).amax(-1, keepdim=True)  # padded, so that no keys have a maximum too
    peak = peak.masked_fill(peak == -torch.inf, 0)
    weights = (scores - peak).exp()
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1)
    lse = (peak + total.log()).masked_fill(empty, -torch.inf)
    return weights / total, lse.squeeze(-1)


def expand_heads(x, heads):
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def wide(x):
    return x if x.dtype == torch.float64 else x.float()
