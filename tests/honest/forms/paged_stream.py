"""Attention over pages as PagedAttention does it: one page of every sequence at a time, with an online softmax. Packed
queries are spread over a batch as long as the longest. Gradients by autograd."""

import torch


def target(query, key_pages, value_pages, block_table, key_lengths, *, is_causal=False, scale=None, cu_seqlens_q=None):
    num_blocks, page_size = key_pages.shape[:2]
    batch, max_blocks = block_table.shape
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    if page_size == 0 or (key_lengths < 0).any() or (key_lengths > max_blocks * page_size).any():
        raise ValueError("pages hold no token, or a length is not that of a row of the table")
    needed = torch.arange(max_blocks) * page_size < key_lengths[:, None]  # (batch, max_blocks)
    if (needed & ((block_table < 0) | (block_table >= num_blocks))).any():
        raise ValueError("the table names a page that is not there")
    table = torch.where(needed, block_table, 0).long()
    q, counts = spread(query, cu_seqlens_q, batch)
    q = q.to(wide)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // key_pages.shape[2]
    diagonal = torch.arange(q.shape[2]) + (key_lengths - counts)[:, None]  # (batch, q_len)
    top = torch.full(q.shape[:3], -torch.inf, dtype=wide)
    total = torch.zeros_like(top)
    mixed = torch.zeros(*q.shape[:3], value_pages.shape[-1], dtype=wide)
    for column in range(int(needed.sum(-1).max())):
        place = torch.arange(column * page_size, (column + 1) * page_size)
        there = place < key_lengths[:, None]  # (batch, page_size)
        k, v = (page_of(pages, table[:, column], there, group).to(wide) for pages in (key_pages, value_pages))
        visible = there[:, None, None]
        if is_causal:
            visible = visible & (place <= diagonal[..., None])[:, None]
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~visible, -torch.inf)
        higher = torch.maximum(top, scores.detach().amax(-1))
        at = torch.where(higher == -torch.inf, 0.0, higher)
        kept, weights = torch.exp(top - at), torch.exp(scores - at[..., None])
        total = total * kept + weights.sum(-1)
        mixed = mixed * kept[..., None] + weights @ v
        top = higher
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    output = mixed / total[..., None]
    lse = (top + torch.log(total)).masked_fill(empty, -torch.inf)
    if cu_seqlens_q is None:
        return output.to(dtype), lse
    own = torch.arange(q.shape[2]) < counts[:, None]  # (batch, q_len)
    return output.transpose(1, 2)[own].to(dtype), lse.transpose(1, 2)[own].T


def page_of(pages, blocks, there, group):
    page = torch.where(there[..., None, None], pages[blocks], 0.0)  # (batch, page_size, kv_heads, dim)
    return page.transpose(1, 2).repeat_interleave(group, 1)


def spread(query, cu_seqlens_q, batch):
    if cu_seqlens_q is None:
        return query, torch.full((batch,), query.shape[2])
    counts = cu_seqlens_q.diff()
    q = query.new_zeros(batch, int(counts.max()), *query.shape[1:])
    for b, (start, count) in enumerate(zip(cu_seqlens_q.tolist(), counts.tolist(), strict=False)):
        q[b, :count] = query[start : start + count]
    return q.transpose(1, 2), counts
