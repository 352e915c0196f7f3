"""The slopes of ALiBi as running products, in float32 throughout."""

import torch


def target(heads):
    below = 2
    while below <= heads:
        below *= 2
    below //= 2
    whole = torch.exp2(torch.tensor(-8.0 / below)).repeat(below).cumprod(0)
    if heads == below:
        return whole
    half = torch.exp2(torch.tensor(-4.0 / below))  # the base of twice as many heads
    factors = torch.full((heads - below,), half.item() ** 2)
    factors[0] = half
    return torch.cat([whole, factors.cumprod(0)])
