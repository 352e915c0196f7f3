"""The slopes of ALiBi as powers of a base, in Python's float64."""

import torch


def target(heads):
    below = 1 << (heads.bit_length() - 1)  # the largest power of two that is no larger than heads
    slopes = of_power(below)
    if below < heads:
        between = of_power(2 * below)
        slopes = slopes + between[0::2][: heads - below]
    return torch.tensor(slopes, dtype=torch.float32)


def of_power(count):
    base = 2.0 ** (-8.0 / count)
    return [base ** (head + 1) for head in range(count)]
