"""Additive attention in float32, float64 for float64, with weights and lse."""

import torch


def target(query, key, value, w_q, w_k, v_a, *, attn_mask=None, is_causal=False):
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    query, key, value, w_q, w_k, v_a = (x.to(wide) for x in (query, key, value, w_q, w_k, v_a))
    from_query = (query @ w_q.T)[..., :, None, :]  # (batch, heads, q_len, 1, hidden)
    from_key = (key @ w_k.T)[..., None, :, :]  # (batch, heads, 1, k_len, hidden)
    scores = torch.tanh(from_query + from_key) @ v_a  # (batch, heads, q_len, k_len)
    visible = torch.ones_like(scores, dtype=torch.bool)
    if attn_mask is not None:
        floats = attn_mask.dtype.is_floating_point
        scores = scores + attn_mask if floats else scores
        shown = attn_mask > -torch.inf if floats else attn_mask
        visible = visible & shown
    if is_causal:
        visible = visible.tril()
    scores = scores.masked_fill(~visible, -torch.inf)
    empty = ~visible.any(-1, keepdim=True)
    weights = torch.softmax(scores, -1).masked_fill(empty, 0.0)
    output = weights @ value
    lse = torch.logsumexp(scores, -1)
    return output.to(dtype), weights.to(dtype), lse
