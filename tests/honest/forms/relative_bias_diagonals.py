"""The bias of T5 by its diagonals: one number for each distance and head, laid out row after row. Its gradient by
autograd, a diagonal at a time."""

import torch


def target(table, q_len, k_len, *, max_distance=128, bidirectional=True, alignment="upper_left"):
    num_buckets, heads = table.shape
    if num_buckets % (2 if bidirectional else 1):
        raise ValueError("an odd table for two directions")
    count = num_buckets // 2 if bidirectional else num_buckets
    if not 1 < count < 2 * max_distance:
        raise ValueError("too few buckets, or a short max_distance")
    if count // 2 >= max_distance:
        raise ValueError("a short max_distance")
    start = k_len - q_len if alignment == "lower_right" else 0
    lowest, highest = 1 - q_len - start, k_len - 1 - start  # of key place - query place
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    of_distance = torch.stack([wide[bucket(d, count, max_distance, bidirectional)] for d in range(lowest, highest + 1)])
    bias = wide.new_empty(heads, q_len, k_len)
    for i in range(q_len):
        first = -start - i - lowest  # where key 0 of this row stands
        bias[:, i] = of_distance[first : first + k_len].T
    return bias.to(table.dtype)


def bucket(distance, count, max_distance, bidirectional):
    base = count if bidirectional and distance > 0 else 0
    far = abs(distance) if bidirectional else max(-distance, 0)
    exact = count // 2
    if far < exact:
        return base + far
    later = count - exact
    steps = [k for k in range(later) if far**later * exact**k >= max_distance**k * exact**later]
    return base + exact + max(steps)
