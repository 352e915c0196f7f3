"""flash-attn-triton 0.1.1: the interface of flash-attention 2 over a kernel that works on multiples of 128."""

import sys
from types import ModuleType

from interpreter import as_if_on_a_gpu, interpreted

GONE = "triton.tools.experimental_descriptor"  # imported, and not used
sys.modules.setdefault(GONE, ModuleType(GONE))

flash_attn_func = interpreted("flash_attn_triton").flash_attn_func


def attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    with as_if_on_a_gpu():
        given = [x.transpose(1, 2) for x in (query, key, value)]
        return flash_attn_func(*given, softmax_scale=scale, causal=is_causal).transpose(1, 2)
