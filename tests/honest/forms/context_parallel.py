"""Ring attention in one process: for each rank's queries the parts of the shards of keys as they arrive, merged by
their lse, in float32, float64 for float64; gradients by autograd."""

import torch


def checked(shards, length):
    if not shards or sorted(torch.cat(list(shards)).tolist()) != list(range(length)):
        raise ValueError(f"the shards hold each position from 0 to {length - 1} once")


def part(query, key, value, visible, scale):
    scores = (query @ key.transpose(-1, -2) * scale).masked_fill(~visible, -torch.inf)
    empty = ~visible.any(-1)
    scores = scores.masked_fill(empty[..., None], 0.0)
    if scores.shape[-1] == 0:
        return query.new_zeros(*query.shape[:-1], value.shape[-1]), query.new_full(query.shape[:-1], -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill(empty[..., None], 0.0)
    return weights @ value, torch.logsumexp(scores, -1).masked_fill(empty, -torch.inf)


def merged(output, lse, part_output, part_lse):
    both = torch.logaddexp(lse, part_lse)
    reach = both.masked_fill(both == -torch.inf, 0.0)
    old, new = torch.exp(lse - reach), torch.exp(part_lse - reach)
    return old[..., None] * output + new[..., None] * part_output, both


def target(query, key, value, query_shards, key_shards, *, attn_mask=None, is_causal=False,
           causal_alignment="upper_left", scale=None):  # fmt: skip
    q_len, k_len = query.shape[2], key.shape[2]
    checked(query_shards, q_len)
    checked(key_shards, k_len)
    wide = torch.promote_types(query.dtype, torch.float32)
    group = query.shape[1] // key.shape[1]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    corner = k_len - q_len if causal_alignment == "lower_right" else 0
    mask = torch.ones(1, 1, q_len, k_len, dtype=torch.bool) if attn_mask is None else attn_mask
    output = query.new_zeros(*query.shape[:3], value.shape[-1], dtype=wide)
    lse = query.new_full(query.shape[:3], -torch.inf, dtype=wide)
    for rows in query_shards:
        q = query[:, :, rows].to(wide)
        o, z = None, None
        for columns in key_shards:
            k = key[:, :, columns].to(wide).repeat_interleave(group, 1)
            v = value[:, :, columns].to(wide).repeat_interleave(group, 1)
            visible = mask[:, :, rows][..., columns]
            if is_causal:
                visible = visible & (columns <= rows[:, None] + corner)
            of_part = part(q, k, v, visible.expand(*q.shape[:3], len(columns)), scale)
            o, z = of_part if o is None else merged(o, z, *of_part)
        output = output.index_copy(2, rows, o)
        lse = lse.index_copy(2, rows, z)
    return output.to(query.dtype), lse
