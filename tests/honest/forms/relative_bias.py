"""The bias of T5: a bucket for every row and key, and the row of the table that it names. The table is read in float32,
float64 for float64, so that autograd adds up its gradient there."""

import torch


def target(table, q_len, k_len, *, max_distance=128, bidirectional=True, alignment="upper_left"):
    first = k_len - q_len if alignment == "lower_right" else 0
    query_place = torch.arange(q_len)[:, None] + first
    distance = torch.arange(k_len) - query_place  # (q_len, k_len)
    places = bucket(distance, len(table), max_distance, bidirectional)
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    bias = torch.nn.functional.embedding(places, wide).permute(2, 0, 1)  # (heads, q_len, k_len)
    return bias.unsqueeze(0).to(table.dtype)


def bucket(distance, num_buckets, max_distance, bidirectional):
    count = num_buckets // 2 if bidirectional else num_buckets
    if (bidirectional and num_buckets % 2) or count < 2 or max_distance <= count // 2:
        raise ValueError("the table's buckets do not fit max_distance and the directions")
    exact, later = count // 2, count - count // 2
    far = distance.abs() if bidirectional else distance.neg().clamp(min=0)
    found = far.clamp(max=exact)
    for step in range(1, later):
        found = found + (far >= boundary(step, exact, later, max_distance)).long()
    return found + count * (distance > 0) if bidirectional else found


def boundary(step, exact, later, max_distance):
    t = exact
    while t**later * exact**step < max_distance**step * exact**later:
        t += 1
    return t
