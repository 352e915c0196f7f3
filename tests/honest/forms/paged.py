"""Attention over pages: the keys and values of a sequence are copied into order, then attended in float32, float64 for
float64. Queries in a batch or packed; gradients by autograd, which adds up the readers of a slot in the dtype of the
pages."""

from itertools import pairwise

import torch


def target(query, key_pages, value_pages, block_table, key_lengths, *, is_causal=False, scale=None, cu_seqlens_q=None):
    num_blocks, page_size, kv_heads = key_pages.shape[:3]
    dtype, max_blocks = query.dtype, block_table.shape[1]
    wide = torch.promote_types(dtype, torch.float32)
    if page_size < 1:
        raise ValueError("a page holds 1 token or more")
    if cu_seqlens_q is None:
        queries = list(query)  # (q_heads, q_len, head_dim) each
    else:
        ends = cu_seqlens_q.tolist()
        queries = [query[start:end].transpose(0, 1) for start, end in pairwise(ends)]
    group = query.shape[-2 if cu_seqlens_q is not None else 1] // kv_heads
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    outputs, lses = [], []
    for b, (q, length) in enumerate(zip(queries, key_lengths.tolist(), strict=True)):
        if not 0 <= length <= max_blocks * page_size:
            raise ValueError(f"length {length}: 0 to {max_blocks * page_size}")
        needed = (length + page_size - 1) // page_size
        blocks = block_table[b, :needed].long()
        if ((blocks < 0) | (blocks >= num_blocks)).any():
            raise ValueError(f"the table has {blocks.tolist()} of {num_blocks} blocks")
        key = key_pages[blocks].flatten(0, 1)[:length]  # (length, kv_heads, head_dim)
        value = value_pages[blocks].flatten(0, 1)[:length]
        key, value = (x.to(wide).transpose(0, 1).repeat_interleave(group, 0) for x in (key, value))
        scores = q.to(wide) @ key.transpose(-1, -2) * scale  # (q_heads, q_len, length)
        hidden = torch.zeros(q.shape[1], length, dtype=torch.bool)
        if is_causal:
            hidden = torch.ones_like(hidden).triu(length - q.shape[1] + 1)
        empty = hidden.all(-1)  # of no key too
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = torch.softmax(scores.masked_fill(empty[:, None], 0.0), -1).masked_fill(empty[:, None], 0.0)
        outputs.append(weights @ value)
        lses.append(torch.logsumexp(scores.masked_fill(empty[:, None], 0.0), -1).masked_fill(empty, -torch.inf))
    if cu_seqlens_q is None:
        return torch.stack(outputs).to(dtype), torch.stack(lses)
    return torch.cat(outputs, 1).transpose(0, 1).to(dtype), torch.cat(lses, 1)
