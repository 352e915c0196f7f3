"""PyTorch alone: with one key, the CPU flash kernel turns a NaN in the key into a number.

The score is NaN, and so is the math kernel's output. Run: python torch_flash_swallows_nan.py; exit code 1 where the
fault shows.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

query, value = torch.ones(1, 1, 1, 4), torch.full((1, 1, 1, 4), 5.0)
key = torch.full((1, 1, 1, 4), torch.nan)
outputs = {}
for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
    with sdpa_kernel(kernel):
        outputs[kernel] = scaled_dot_product_attention(query, key, value)
    print(f"{kernel.name:15}: {outputs[kernel][0, 0, 0].tolist()}")
sys.exit(0 if outputs[SDPBackend.FLASH_ATTENTION].isnan().all() else 1)
