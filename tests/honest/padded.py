"""Lengths and head dims padded to whole blocks; the pads hold 0, and guards keep them out of the softmax."""

import torch
from torch.nn.functional import pad

BLOCK = 16


@torch.no_grad()
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, return_lse=False):
    if not (query.ndim == 4 and key.shape[:3] == value.shape[:3] and key.shape[3] == query.shape[3]):
        raise ValueError("query, key and value do not fit each other")
    if key.shape[0] not in (1, query.shape[0]) or query.shape[1] % key.shape[1]:
        raise ValueError("batch or heads of query and key do not fit")
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    q_len, head_dim = query.shape[-2:]
    k_len, value_dim = value.shape[-2:]
    scale = head_dim**-0.5 if scale is None else scale
    value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    query_block, key_block, value_block = (whole_blocks(x).to(wide) for x in (query, key, value))
    scores = query_block @ key_block.transpose(-1, -2) * scale
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], k_len)
        hidden = False if attn_mask.dtype == torch.bool else 0.0
        attn_mask = pad(attn_mask, missing(attn_mask), value=hidden)
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    rows, keys = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
    if is_causal:
        scores = scores.masked_fill(keys > rows, -torch.inf)
    scores = scores.masked_fill(keys >= k_len, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    output = weights @ value_block / total.masked_fill(total == 0, 1.0)
    output = output[..., :q_len, :value_dim].to(query.dtype)
    lse = (top + torch.log(total))[..., :q_len, 0]
    return (output, lse) if return_lse else output


def missing(x):
    """How many columns and rows the last blocks lack, as `pad` takes them; one block at the least."""
    rows, columns = (max(BLOCK, -(-n // BLOCK) * BLOCK) - n for n in x.shape[-2:])
    return (0, columns, 0, rows)


def whole_blocks(x):
    """Return x with zeros after its last row and column."""
    return pad(x, missing(x))
