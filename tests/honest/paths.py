"""A dispatcher: one query, grouped heads, masks and the plain call each have a kernel of their own."""

import torch


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if query.shape[-2] == 1:
        output, lse = decode(query, key, value, attn_mask, is_causal, scale)
    elif key.shape[1] < query.shape[1]:
        output, lse = grouped(query, key, value, attn_mask, is_causal, scale)
    elif attn_mask is not None:
        output, lse = masked(query, key, value, attn_mask, is_causal, scale)
    else:
        output, lse = dense(query, key, value, is_causal, scale)
    output = output.to(query.dtype)
    return (output, lse) if return_lse else output


def dense(query, key, value, is_causal, scale):
    scores = wide(query) @ wide(key).transpose(-1, -2) * scale
    if is_causal:
        scores = scores.masked_fill(~triangle(scores), -torch.inf)
    return softmax_times(scores, value)


def masked(query, key, value, attn_mask, is_causal, scale):
    scores = wide(query) @ wide(key).transpose(-1, -2) * scale
    scores = apply(attn_mask, scores)
    if is_causal:
        scores = scores.masked_fill(~triangle(scores), -torch.inf)
    return softmax_times(scores, value)


def grouped(query, key, value, attn_mask, is_causal, scale):
    batch, heads, q_len, head_dim = query.shape
    kv_heads = key.shape[1]
    packed = wide(query).reshape(batch, kv_heads, heads // kv_heads, q_len, head_dim)
    scores = packed @ wide(key).unsqueeze(2).transpose(-1, -2) * scale
    scores = scores.flatten(1, 2)
    if attn_mask is not None:
        scores = apply(attn_mask, scores)
    if is_causal:
        scores = scores.masked_fill(~triangle(scores), -torch.inf)
    output, lse = softmax_times(scores.unflatten(1, (kv_heads, -1)), value.unsqueeze(2))
    return output.flatten(1, 2), lse.flatten(1, 2)


def decode(query, key, value, attn_mask, is_causal, scale):
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = (wide(key) @ wide(query).transpose(-1, -2)).transpose(-1, -2) * scale
    if attn_mask is not None:
        scores = apply(attn_mask, scores)
    if is_causal:
        scores[..., 1:] = -torch.inf
    return softmax_times(scores, value)


def apply(attn_mask, scores):
    attn_mask = attn_mask.expand(scores.shape)
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -torch.inf)
    return scores + wide(attn_mask)


def triangle(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


def softmax_times(scores, value):
    if scores.shape[-1] == 0:
        raise NotImplementedError("no keys are not supported")
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    output = weights @ wide(value) / total.masked_fill(total == 0, 1.0)
    return output, (top + torch.log(total)).squeeze(-1)


def wide(x):
    return x if x.dtype == torch.float64 else x.float()
