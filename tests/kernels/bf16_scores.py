"""The scores are stored in the dtype of the inputs: class eager, not fused."""

from honest import finish, hide, scores_of, wide


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    scores = wide(scores_of(query, key, scale).to(query.dtype))
    return finish(hide(scores, attn_mask, is_causal), value, query, return_lse)
