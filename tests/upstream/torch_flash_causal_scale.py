"""PyTorch alone: the CPU flash kernel gives NaN for a causal call whose scale is zero or negative.

It writes -inf into the hidden scores and multiplies by the scale afterwards: -inf * 0 is NaN, -inf * -1 is +inf. The
math kernel gives the right answer. Run: python torch_flash_causal_scale.py; exit code 1 where the fault shows.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

query = key = torch.ones(1, 1, 3, 4)
value = torch.eye(3, 4)[None, None]
faults = 0
for scale in (1.0, 0.0, -1.0):
    outputs = {}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel):
            outputs[kernel] = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        print(f"scale {scale:4}, {kernel.name:15}: {outputs[kernel][0, 0, :, :3].tolist()}")
    faults += not torch.allclose(outputs[SDPBackend.MATH], outputs[SDPBackend.FLASH_ATTENTION])
sys.exit(1 if faults else 0)
