"""Context parallelism by gathering: each rank takes all keys in the order in which they arrive, and knows their
positions; forward in float32, float64 for float64, gradients by its own backward pass with the merged lse."""

import torch


def checked(shards, length, name):
    held = torch.cat(list(shards)) if shards else torch.empty(0, dtype=torch.int64)
    if len(held) != length or not torch.equal(held.sort().values, torch.arange(length)):
        raise ValueError(f"{name}: each of {length} positions in one shard")
    return held


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, visible, scale):
        wide = torch.promote_types(query.dtype, torch.float32)
        group = query.shape[1] // key.shape[1]
        k, v = (x.to(wide).repeat_interleave(group, 1) for x in (key, value))
        scores = (query.to(wide) @ k.transpose(-1, -2) * scale).masked_fill(~visible, -torch.inf)
        lse = torch.logsumexp(scores, -1)
        reach = lse.masked_fill(lse == -torch.inf, 0.0)
        output = torch.exp(scores - reach[..., None]) @ v
        ctx.save_for_backward(query, key, value, visible, output, reach)
        ctx.scale = scale
        return output.to(query.dtype), lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key, value, visible, output, lse = ctx.saved_tensors
        wide, (batch, kv_heads, k_len, dim) = output.dtype, key.shape
        group = query.shape[1] // kv_heads
        q, flow = query.to(wide), grad_output.to(wide)
        k, v = (x.to(wide).repeat_interleave(group, 1) for x in (key, value))
        scores = (q @ k.transpose(-1, -2) * ctx.scale).masked_fill(~visible, -torch.inf)
        weights = torch.exp(scores - lse[..., None])
        delta = (flow * output).sum(-1, keepdim=True) - grad_lse[..., None]
        grad_scores = weights * (flow @ v.transpose(-1, -2) - delta) * ctx.scale
        grad_query = grad_scores @ k
        grad_key = (grad_scores.transpose(-1, -2) @ q).reshape(batch, kv_heads, group, k_len, dim).sum(2)
        grad_value = (weights.transpose(-1, -2) @ flow).reshape(batch, kv_heads, group, k_len, v.shape[-1]).sum(2)
        return grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def target(query, key, value, query_shards, key_shards, *, attn_mask=None, is_causal=False,
           causal_alignment="upper_left", scale=None):  # fmt: skip
    q_len, k_len = query.shape[2], key.shape[2]
    back = checked(query_shards, q_len, "query_shards").argsort()
    columns = checked(key_shards, k_len, "key_shards")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    corner = k_len - q_len if causal_alignment == "lower_right" else 0
    results = []
    for rows in query_shards:
        visible = columns <= rows[:, None] + corner if is_causal else columns == columns.expand(len(rows), k_len)
        if attn_mask is not None:
            visible = visible & attn_mask[:, :, rows][..., columns]
        results.append(Gathered.apply(query[:, :, rows], key[:, :, columns], value[:, :, columns], visible, scale))
    outputs, lses = zip(*results, strict=True)
    return torch.cat(outputs, 2)[:, :, back], torch.cat(lses, 2)[:, :, back]
