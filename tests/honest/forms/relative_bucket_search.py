"""The buckets of T5 by a search in their first distances, guessed with logarithms and put right in integers."""

import math

import torch


def target(distance, *, num_buckets=32, max_distance=128, bidirectional=True):
    if bidirectional and num_buckets % 2 == 1:
        raise ValueError("num_buckets is odd")
    buckets = num_buckets // (2 if bidirectional else 1)
    if buckets < 2:
        raise ValueError("num_buckets is too small")
    starts = torch.tensor(first_distances(buckets, max_distance))
    before = torch.searchsorted(starts, (-distance).clamp(min=0).long(), right=True) - 1
    if not bidirectional:
        return before
    behind = buckets + torch.searchsorted(starts, distance.clamp(min=0).long(), right=True) - 1
    return torch.where(distance > 0, behind, before)


def first_distances(buckets, max_distance):
    single = buckets // 2
    if single >= max_distance:
        raise ValueError("max_distance is too small")
    wide = buckets - single
    starts = list(range(single + 1))
    for step in range(1, wide):
        guess = math.ceil(single * math.exp(step / wide * math.log(max_distance / single)))
        while guess > single and (guess - 1) ** wide * single**step >= max_distance**step * single**wide:
            guess -= 1
        while guess**wide * single**step < max_distance**step * single**wide:
            guess += 1
        starts.append(guess)
    return starts
