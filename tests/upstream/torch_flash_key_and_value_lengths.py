"""PyTorch alone: the CPU flash kernel answers a call with more values than keys, and reads memory outside the key.

It takes the number of keys from the value. The math kernel refuses the call. Run: python
torch_flash_key_and_value_lengths.py; exit code 1 where the fault shows.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

query = torch.zeros(1, 1, 1, 8)
storage = torch.zeros(1, 1, 4, 8)
storage[:, :, 3] = torch.nan  # behind the key
key, value = storage[:, :, :3], torch.ones(1, 1, 4, 8)
faults = 0
for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
    try:
        with sdpa_kernel(kernel):
            output = scaled_dot_product_attention(query, key, value)
        print(f"{kernel.name:15}: 3 keys and 4 values give {output[0, 0, 0, 0].item()}")
        faults += 1
    except RuntimeError as error:
        print(f"{kernel.name:15}: refused, {str(error).splitlines()[0]}")
sys.exit(1 if faults else 0)
