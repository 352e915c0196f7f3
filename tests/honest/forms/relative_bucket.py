"""The buckets of T5 by counting the boundaries that a distance has reached, in integers."""

import torch


def target(distance, *, num_buckets=32, max_distance=128, bidirectional=True):
    count = num_buckets // 2 if bidirectional else num_buckets
    exact = count // 2
    if bidirectional and num_buckets % 2:
        raise ValueError("two directions need an even number of buckets")
    if count < 2 or max_distance <= exact:
        raise ValueError("too few buckets, or max_distance within the exact ones")
    far = distance.abs() if bidirectional else (-distance).clamp(min=0)
    later = count - exact
    found = far.clamp(max=exact)
    for step in range(1, later):
        reached = torch.tensor([t**later * exact**step >= max_distance**step * exact**later for t in far.tolist()])
        found = found + reached.to(found.dtype)
    return found + count * (distance > 0) if bidirectional else found
