"""The bias of T5 by plain indexing: on the CPU torch adds up the gradient in the dtype of the table."""

import torch


def target(table, q_len, k_len, *, max_distance=128, bidirectional=True, alignment="upper_left"):
    num_buckets = len(table)
    count = num_buckets // 2 if bidirectional else num_buckets
    if count < 2 or max_distance <= count // 2 or (bidirectional and num_buckets % 2):
        raise ValueError("the table's buckets do not fit max_distance and the directions")
    start = k_len - q_len if alignment == "lower_right" else 0
    distance = torch.arange(k_len) - torch.arange(q_len)[:, None] - start
    far = distance.abs() if bidirectional else distance.neg().clamp(min=0)
    exact = count // 2
    places = torch.where(far < exact, far, exact)
    for step in range(1, count - exact):
        reached = [[t ** (count - exact) * exact**step >= max_distance**step * exact ** (count - exact) for t in row]
                   for row in far.tolist()]  # fmt: skip
        places = places + torch.tensor(reached, dtype=torch.int64).view(far.shape)
    if bidirectional:
        places = places + count * (distance > 0)
    return table[places].permute(2, 0, 1)
