"""What several of the honest kernels start from. The bases of mutants do without it: they are read on their own."""

import torch


def wide(x):
    """Float64 stays, all else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def check_shapes(query, key, value):
    """Raise ValueError where the three tensors do not fit each other (rule `notation.shapes`)."""
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")


def inputs(query, key, value, scale):
    """Return wide query, key and value, one key and value head for every query head, and the scale."""
    check_shapes(query, key, value)
    group = query.shape[1] // key.shape[1]
    key, value = (wide(x).repeat_interleave(group, dim=1) for x in (key, value))
    return wide(query), key, value, query.shape[-1] ** -0.5 if scale is None else scale


def hide(scores, attn_mask, is_causal):
    """Return the scores with the bias added and -inf in hidden slots. scores: (batch, heads, q_len, k_len).

    Raises RuntimeError where the mask does not broadcast to the scores.
    """
    if attn_mask is not None:
        attn_mask = attn_mask.expand(scores.shape)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + wide(attn_mask)
    if is_causal:
        triangle = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~triangle, -torch.inf)
    return scores


def lse_of(scores):
    """Return the lse of every row, (..., q_len, 1), -inf where it sees no key; its gradient is finite there too."""
    if scores.shape[-1] == 0:
        return scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    top = scores.amax(-1, keepdim=True).detach()
    empty = top == -torch.inf
    safe = top.masked_fill(empty, 0.0)
    total = (scores - safe).exp().sum(-1, keepdim=True).masked_fill(empty, 1.0)
    return (safe + total.log()).masked_fill(empty, -torch.inf)


def softmax(scores):
    """Return the weights, all 0 in a row that sees no key, and the lse (..., q_len)."""
    lse = lse_of(scores)
    safe = lse.masked_fill(lse == -torch.inf, 0.0)
    weights = (scores - safe).exp()
    return weights / weights.sum(-1, keepdim=True).masked_fill(lse == -torch.inf, 1.0), lse.squeeze(-1)


def result(output, lse, query, return_lse):
    """Return what the caller asked for, the output in the query's dtype."""
    output = output.to(query.dtype)
    return (output, lse) if return_lse else output
