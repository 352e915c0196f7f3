"""Attention over pages with a backward pass of its own: the weights again from the lse, and what each sequence gives to
its slots added up in a float32 pool, float64 for float64, that is stored once."""

import torch


def target(query, key_pages, value_pages, block_table, key_lengths, *, is_causal=False, scale=None, cu_seqlens_q=None):
    num_blocks, page_size = key_pages.shape[:2]
    if page_size == 0 or not all(0 <= n <= block_table.shape[1] * page_size for n in key_lengths.tolist()):
        raise ValueError("pages hold no token, or a length is not that of a row of the table")
    tokens = query if cu_seqlens_q is not None else query.transpose(1, 2).flatten(0, 1)  # (total_q, q_heads, head_dim)
    counts = [query.shape[2]] * len(key_lengths) if cu_seqlens_q is None else cu_seqlens_q.diff().tolist()
    slots = []
    for row, length in zip(block_table, key_lengths.tolist(), strict=True):
        j = torch.arange(length)
        blocks = row[j // page_size].long()
        if ((blocks < 0) | (blocks >= num_blocks)).any():
            raise ValueError("the table names a page that is not there")
        slots.append(blocks * page_size + j % page_size)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output, lse = Paged.apply(tokens, key_pages, value_pages, slots, counts, is_causal, scale)
    if cu_seqlens_q is not None:
        return output, lse
    shape = (len(counts), counts[0])
    return output.unflatten(0, shape).transpose(1, 2), lse.unflatten(1, shape).transpose(0, 1)


class Paged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key_pages, value_pages, slots, counts, is_causal, scale):
        wide = torch.promote_types(query.dtype, torch.float32)
        output = torch.zeros(*query.shape[:2], value_pages.shape[-1], dtype=wide)
        lse = torch.full((query.shape[1], len(query)), -torch.inf, dtype=wide)
        for rows, own in zip(rows_of(counts), slots, strict=True):
            q, k, v = of_sequence(query, key_pages, value_pages, rows, own, wide)
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(hidden(q, k, is_causal), -torch.inf)
            of_rows = torch.logsumexp(scores, -1)
            output[rows] = (weights_of(scores, of_rows) @ v).transpose(0, 1)
            lse[:, rows] = of_rows
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key_pages, value_pages, output, lse)
        ctx.call = slots, counts, is_causal, scale
        return output, lse

    @staticmethod
    def backward(ctx, grad_output, grad_lse):
        query, key_pages, value_pages, output, lse = ctx.saved_tensors
        slots, counts, is_causal, scale = ctx.call
        wide, kv_heads = lse.dtype, key_pages.shape[2]
        grad_query = torch.zeros(query.shape, dtype=wide)
        grad_keys, grad_values = (torch.zeros(x.flatten(0, 1).shape, dtype=wide) for x in (key_pages, value_pages))
        delta = (grad_output.to(wide) * output.to(wide)).sum(-1).T - grad_lse  # (q_heads, total_q)
        for rows, own in zip(rows_of(counts), slots, strict=True):
            q, k, v = of_sequence(query, key_pages, value_pages, rows, own, wide)
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(hidden(q, k, is_causal), -torch.inf)
            weights = weights_of(scores, lse[:, rows])
            flow = grad_output[rows].to(wide).transpose(0, 1)  # (q_heads, q_len, value_dim)
            grad_scores = weights * (flow @ v.transpose(-1, -2) - delta[:, rows, None]) * scale
            grad_query[rows] = (grad_scores @ k).transpose(0, 1)
            for total, grads in ((grad_keys, grad_scores.transpose(-1, -2) @ q), (grad_values, weights.mT @ flow)):
                of_heads = grads.unflatten(0, (kv_heads, -1)).sum(1)  # (kv_heads, length, dim)
                total.index_add_(0, own, of_heads.transpose(0, 1))
        stored = (grad_query, grad_keys.view(key_pages.shape), grad_values.view(value_pages.shape))
        return *(x.to(query.dtype) for x in stored), None, None, None, None


def rows_of(counts):
    ends = torch.tensor(counts).cumsum(0).tolist()
    return [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]


def of_sequence(query, key_pages, value_pages, rows, own, wide):
    q = query[rows].to(wide).transpose(0, 1)
    group = query.shape[1] // key_pages.shape[2]
    k, v = (x.flatten(0, 1)[own].to(wide).transpose(0, 1).repeat_interleave(group, 0) for x in (key_pages, value_pages))
    return q, k, v


def hidden(q, k, is_causal):
    beyond = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
    return beyond if is_causal else torch.zeros_like(beyond)


def weights_of(scores, lse):
    return torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
