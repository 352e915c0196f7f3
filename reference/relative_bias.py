"""The relative position bias of T5: a learned number for each head and bucket of distances (chapter
"position-bias")."""

from __future__ import annotations

import torch

from attnspec.spec.errors import InputError


def bucket(
    distance: torch.Tensor, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> torch.Tensor:
    """Return the bucket of each distance, int64 of the shape of `distance`.

    distance: position of the key minus that of the query, int32 or int64, above 0 for keys beyond the diagonal.
    num_buckets: of both directions together. Distances of max_distance and more share a bucket. Raises InputError for
    numbers that do not fit. Rules: `relative-bias.bucket`, `relative-bias.direction`. Source: Raffel et al. 2020,
    section 2.1; its code, `_relative_position_bucket`.
    """
    check_buckets(num_buckets, max_distance, bidirectional)
    if not bidirectional:
        return of_distance(distance.neg().clamp(min=0), num_buckets, max_distance)
    half = num_buckets // 2
    return half * (distance > 0) + of_distance(distance.abs(), half, max_distance)


def of_distance(distance: torch.Tensor, count: int, max_distance: int) -> torch.Tensor:
    """Return the bucket, 0 to count - 1, of distances of 0 and more.

    The first E = floor(count / 2) distances have a bucket each; from there on the bucket is

        min(count - 1, E + floor((count - E) log(t / E) / log(max_distance / E)))

    whose floor is the largest k with (t / E)^n >= (max_distance / E)^k, n = count - E: a comparison of integers, so
    that no rounded logarithm moves a boundary. Rule: `relative-bias.bucket`.
    """
    exact = count // 2
    n = count - exact
    buckets = distance.long().clone()  # right for distances below `exact`
    for t in set(distance.flatten().tolist()):
        if t >= exact:
            k = max(k for k in range(n) if is_at_least(t, k, exact, n, max_distance))
            buckets[distance == t] = exact + k
    return buckets


def is_at_least(t: int, k: int, exact: int, n: int, max_distance: int) -> bool:
    """Whether n log(t / exact) / log(max_distance / exact) >= k."""
    return bool(t**n * exact**k >= max_distance**k * exact**n)


def relative_bias(
    table: torch.Tensor,
    q_len: int,
    k_len: int,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    alignment: str = "upper_left",
) -> torch.Tensor:
    """Return what is added to the scaled scores, (1, heads, q_len, k_len), of the dtype of the table: an `attn_mask`.

    table: (num_buckets, heads), of any floating dtype. Query i stands at position i for `upper_left` and
    k_len - q_len + i for `lower_right`. Raises InputError as `bucket` does, and for another alignment or table. Rules:
    `relative-bias.head`, `relative-bias.offset`. Source: Raffel et al. 2020, section 2.1.
    """
    if table.ndim != 2 or not table.dtype.is_floating_point:
        raise InputError(f"table is {table.dtype} {tuple(table.shape)}: use floating (num_buckets, heads)")
    places = buckets_of_slots(len(table), q_len, k_len, max_distance, bidirectional, alignment)
    return table[places].permute(2, 0, 1)[None]  # (1, heads, q_len, k_len)


def relative_bias_backward(
    grad_bias: torch.Tensor,
    num_buckets: int,
    *,
    max_distance: int = 128,
    bidirectional: bool = True,
    alignment: str = "upper_left",
) -> torch.Tensor:
    """Return the gradient of the table, float64 (num_buckets, heads): the sum over all slots that read an entry.

    grad_bias: gradient of the loss with respect to the bias, (batch or 1, heads, q_len, k_len), of any floating dtype,
    as `attnspec.reference.backward.backward` gives it for an `attn_mask`. Raises InputError as `bucket` does, and for
    another grad_bias. Rule: `relative-bias.gradient`.
    """
    if grad_bias.ndim != 4 or not grad_bias.dtype.is_floating_point:
        said = f"grad_bias is {grad_bias.dtype} {tuple(grad_bias.shape)}"
        raise InputError(f"{said}: use floating (batch or 1, heads, q_len, k_len)")
    _, heads, q_len, k_len = grad_bias.shape
    places = buckets_of_slots(num_buckets, q_len, k_len, max_distance, bidirectional, alignment)
    of_slots = grad_bias.double().sum(0).permute(1, 2, 0).reshape(-1, heads)  # (q_len * k_len, heads)
    return torch.zeros(num_buckets, heads, dtype=torch.float64).index_add(0, places.flatten(), of_slots)


def buckets_of_slots(
    num_buckets: int, q_len: int, k_len: int, max_distance: int, bidirectional: bool, alignment: str
) -> torch.Tensor:
    """Return the bucket that each slot reads, int64 (q_len, k_len). Raises InputError. Rule: `relative-bias.offset`."""
    offsets = {"upper_left": 0, "lower_right": k_len - q_len}
    if alignment not in offsets:
        raise InputError(f"alignment is {alignment!r}: use one of {', '.join(offsets)}")
    query_position = torch.arange(q_len)[:, None] + offsets[alignment]  # (q_len, 1)
    distance = torch.arange(k_len) - query_position  # (q_len, k_len)
    return bucket(distance, num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional)


def check_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    """Raise InputError for buckets that cannot be. Rule: `relative-bias.shape`."""
    for name, number in (("num_buckets", num_buckets), ("max_distance", max_distance)):
        if not isinstance(number, int):
            raise InputError(f"{name} is {number!r}: use a whole number, an int")
    if bidirectional and num_buckets % 2:
        raise InputError(f"num_buckets is {num_buckets}: use an even number where it is bidirectional")
    count = num_buckets // 2 if bidirectional else num_buckets
    if count < 2:
        raise InputError(f"num_buckets is {num_buckets}: use 2 or more for a direction")
    if max_distance <= count // 2:
        raise InputError(f"max_distance is {max_distance}: use more than {count // 2}, the buckets of one distance")
