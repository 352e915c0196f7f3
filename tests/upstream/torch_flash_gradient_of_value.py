"""PyTorch alone: the CPU flash kernel adds up the gradient of the value in the storage dtype, block of rows by block.

With one key every weight is 1, so the gradient of its value is the sum of what flows back to all rows. The first block
of 32 rows gives 256, each of the next four 0.9375, which bfloat16 cannot add to 256: the sum 259.75 comes out as 256.
The math kernel rounds once, to 260. Run: python torch_flash_gradient_of_value.py; exit code 1 where the fault shows.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

rows, block = 160, 32
flow = torch.full((rows,), 0.9375 / block)
flow[:block] = 256 / block
grad_output = flow[None, None, :, None].expand(1, 1, rows, 4).bfloat16().contiguous()
found = {}
for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
    value = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    query, key = torch.zeros(1, 1, rows, 4, dtype=torch.bfloat16), torch.zeros(1, 1, 1, 4, dtype=torch.bfloat16)
    with sdpa_kernel(kernel):
        scaled_dot_product_attention(query, key, value, scale=1.0).backward(grad_output)
    assert value.grad is not None
    found[kernel] = float(value.grad[0, 0, 0, 0])
    print(f"{kernel.name:15}: gradient of value {found[kernel]}, exactly {float(grad_output[..., 0].double().sum())}")
sys.exit(1 if found[SDPBackend.MATH] != found[SDPBackend.FLASH_ATTENTION] else 0)
