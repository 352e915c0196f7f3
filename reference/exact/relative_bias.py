"""The buckets of T5's relative position bias from their first distances, in rational numbers.

The bucket E + k of a direction begins at the smallest integer t with (t / E)^n >= (max_distance / E)^k, n = count - E,
which is the formula of chapter "position-bias" without its logarithms.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnspec.spec.errors import InputError


def first_distances(count: int, max_distance: int) -> list[int]:
    """Return the first distance of each of the `count` buckets of a direction, rising.

    Raises InputError for less than 2 buckets and for a max_distance that is not above count / 2. Rule
    `relative-bias.bucket`. Source: Raffel et al. 2020, section 2.1; its code, `_relative_position_bucket`.
    """
    exact = count // 2
    if count < 2 or max_distance <= exact:
        raise InputError(f"{count} buckets and max_distance {max_distance}: use 2 or more, and more than {exact}")
    n = count - exact
    ratio = Fraction(max_distance, exact)
    later = [
        bisect_left(range(max_distance + 1), ratio**k, lo=exact, key=lambda t: Fraction(t, exact) ** n)
        for k in range(1, n)
    ]
    return [*range(exact + 1), *later]


def buckets(
    distance: NDArray[np.integer], *, num_buckets: int, max_distance: int, bidirectional: bool
) -> NDArray[np.int64]:
    """Return the bucket of each distance (position of the key minus that of the query), of the shape of `distance`.

    num_buckets: of both directions together. Raises InputError as `first_distances` does, and for an odd number of
    buckets of two directions. Rules `relative-bias.bucket`, `relative-bias.direction`.
    """
    if bidirectional and num_buckets % 2:
        raise InputError(f"num_buckets is {num_buckets}: use an even number for two directions")
    count = num_buckets // 2 if bidirectional else num_buckets
    starts = first_distances(count, max_distance)
    found = np.zeros(distance.shape, dtype=np.int64)
    for place in np.ndindex(distance.shape):
        far = int(distance[place])
        if far <= 0:
            found[place] = bisect_right(starts, -far) - 1
        elif bidirectional:
            found[place] = count + bisect_right(starts, far) - 1
    return found
