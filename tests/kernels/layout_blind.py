"""The key is read as if it were contiguous, whatever its strides say."""

from honest import attention as honest


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    _, heads, length, dim = key.shape
    key = key.as_strided(key.shape, (heads * length * dim, length * dim, dim, 1))
    return honest(query, key, value, attn_mask, is_causal, scale, return_lse=return_lse)
