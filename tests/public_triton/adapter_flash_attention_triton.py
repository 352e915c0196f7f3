"""flash-attention-triton 0.1.1: FlashAttention-2, always causal, computed in float16 whatever the dtype."""

from interpreter import as_if_on_a_gpu, interpreted

flash_attention_v2 = interpreted("flash_attention_triton").flash_attention_v2


def attention(query, key, value, is_causal=False, scale=None):
    if not is_causal:
        raise NotImplementedError("the package is causal always")
    with as_if_on_a_gpu():
        return flash_attention_v2(query, key, value, softmax_scale=scale, deterministic=True)
