"""Parts merged one after the other, each time by exp(lse of a part - lse of both), in the dtype of the lse."""

import torch


def target(outputs, lses):
    output, lse = torch.zeros_like(outputs[0], dtype=lses.dtype), torch.full_like(lses[0], -torch.inf)
    for part, part_lse in zip(outputs.to(lses.dtype), lses, strict=True):
        both = torch.logaddexp(lse, part_lse)
        reach = torch.where(both == -torch.inf, 0.0, both)
        output = torch.exp(lse - reach)[..., None] * output + torch.exp(part_lse - reach)[..., None] * part
        lse = both
    return output.to(outputs.dtype), lse
