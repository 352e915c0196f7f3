"""jvp-flash-attention 0.14.0: attention with second derivatives, for queries and keys of one length, 32 or more."""

from interpreter import as_if_on_a_gpu, interpreted

JVPAttn = interpreted("jvp_flash_attention.jvp_attention").JVPAttn


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if query.shape != key.shape:
        raise NotImplementedError("the package has one shape for queries, keys and values")
    with as_if_on_a_gpu():
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        return JVPAttn.fwd_dual(query, key, value, attn_mask=attn_mask, causal=is_causal, sm_scale=scale)
