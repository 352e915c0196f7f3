"""PyTorch alone: the math kernel takes a dropout_p below 0 and NaN for no dropout, and refuses one above 1.

`torch.nn.functional.dropout` refuses all of them. Run: python torch_math_dropout_range.py; exit code 1 where the fault
shows.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

query, key, value = torch.ones(3, 1, 1, 4, 4)
answered = []
for p in (-0.25, float("nan"), 1.25):
    with sdpa_kernel(SDPBackend.MATH):
        try:
            scaled_dot_product_attention(query, key, value, dropout_p=p)
        except RuntimeError as refusal:
            print(f"dropout_p={p}: {refusal}")
        else:
            answered.append(p)
            print(f"dropout_p={p}: answered")
sys.exit(1 if answered else 0)
