"""PyTorch alone: with few keys, the CPU flash kernel turns a row whose scores are all NaN into numbers.

The scores are NaN, and so is the math kernel's output; the flash kernel gives 0 where there are fewer keys than about
two vectors of the processor hold. Run: python torch_flash_swallows_nan.py; exit code 1 where the fault shows.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

swallowed = []
for keys in (1, 2, 6, 7, 16, 64):
    query, value = torch.full((1, 1, 1, 4), torch.nan), torch.full((1, 1, keys, 4), 5.0)
    outputs = {}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel):
            outputs[kernel.name] = scaled_dot_product_attention(query, torch.ones(1, 1, keys, 4), value)[0, 0, 0, 0]
    print(f"{keys} keys: {', '.join(f'{name} {float(number)}' for name, number in outputs.items())}")
    if not outputs["FLASH_ATTENTION"].isnan():
        swallowed.append(keys)
sys.exit(1 if swallowed else 0)
